"""Whether what several callers heard of one key could have been heard one after another.

A history is linearizable when each call can be given a moment between its beginning and its end,
such that the sequential specification (``step``), told the calls in the order of these moments,
answers each as it was answered. The search is Wing and Gong's: try every call that may come next,
and never the same set of calls from the same state twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

WON, BUSY, OK, LOST = "won", "busy", "ok", "lost"
#: A claim that lost five races in a row says that the key is in use, whatever it is.
GAVE_UP = "gave up"


class Key(NamedTuple):
    """The key, to the sequential specification."""

    state: str = "absent"
    owner: int = 0
    lease_over: bool = False
    answer: str = ""


@dataclass(frozen=True)
class Call:
    """What was asked, by whom, what was answered, and when it began and ended."""

    asked: str
    by: int
    answered: str
    began: int
    ended: int


def step(key: Key, call: Call) -> Key | None:
    """The key after a call; None when it could not have been answered so."""
    if call.asked == "claim":
        return _claim(key, call)
    if call.asked == "end lease":
        return key._replace(lease_over=True) if key.state == "processing" else key
    owned = key.state == "processing" and key.owner == call.by
    if call.answered == LOST or not owned:
        return key if call.answered == LOST and not owned else None
    if call.asked == "release":
        return Key()
    if call.asked == "fail":
        return Key("failed")
    return Key("succeeded", answer=call.asked.removeprefix("complete "))


def _claim(key: Key, call: Call) -> Key | None:
    if call.answered == GAVE_UP:
        return key
    if key.state == "succeeded":
        expected = f"replay {key.answer}"
    elif key.state == "processing" and not key.lease_over:
        expected = BUSY
    else:
        expected = WON
    if call.answered != expected:
        return None
    return Key("processing", call.by) if expected == WON else key


def is_linearizable(history: Sequence[Call]) -> bool:
    """Search for an order. Exponential at worst, so histories are short."""
    everything = (1 << len(history)) - 1
    tried: set[tuple[int, Key]] = set()
    ahead = [(everything, Key())]
    while ahead:
        left, key = ahead.pop()
        if not left:
            return True
        if (left, key) in tried:
            continue
        tried.add((left, key))
        open_calls = [number for number in range(len(history)) if left >> number & 1]
        # Whatever began after another one had ended comes after it.
        first_end = min(history[number].ended for number in open_calls)
        for number in open_calls:
            if history[number].began <= first_end:
                after = step(key, history[number])
                if after is not None:
                    ahead.append((left & ~(1 << number), after))
    return False
