"""Charts as SVG: the geometry only. Beside each the page has its numbers in a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

#: In the units of the picture, which is stretched to the width there is.
WIDTH, HEIGHT = 720, 96


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of its own, with what is told where the pointer rests."""

    x: float
    y: float
    width: float
    height: float
    text: str = ""


def columns(values: Sequence[float], texts: Sequence[str] = ()) -> list[Bar]:
    """Bars side by side, from the left; the highest is as high as the picture. What is more than
    nothing can be seen."""
    top, step = max(values, default=0), WIDTH / max(1, len(values))
    heights = [max(2.0, HEIGHT * value / top) if value > 0 else 0.0 for value in values]
    told = texts or [""] * len(values)
    return [
        Bar(
            round(index * step, 2),
            round(HEIGHT - height, 2),
            round(step * 0.8, 2),
            round(height, 2),
            text,
        )
        for index, (height, text) in enumerate(zip(heights, told, strict=True))
    ]


def outline(values: Sequence[float]) -> str:
    """The same bars as one path: for so many of them that an element each would be a burden."""
    return "".join(
        f"M{bar.x:g} {HEIGHT}v-{bar.height:g}h{bar.width:g}v{bar.height:g}z"
        for bar in columns(values)
        if bar.height
    )


def averages(values: Sequence[int], of: int) -> list[float]:
    """The mean of each ``of`` values."""
    return [sum(values[at : at + of]) / of for at in range(0, len(values), of)]
