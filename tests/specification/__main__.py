"""Print what the searches came to. Ends with 1 when one of them should have ended otherwise."""

from __future__ import annotations

import sys
import time

from tests.specification.mutations import MUTATIONS
from tests.specification.search import Broken, search
from tests.specification.spaces import SMALL, WHOLE


def main(small: bool) -> bool:
    good, worlds, steps = True, 0, 0
    for space in SMALL if small else WHOLE:
        began = time.monotonic()
        searched = search(space.protocol)
        worlds, steps = worlds + searched.worlds, steps + searched.steps
        took = f"{time.monotonic() - began:.0f} s"
        if searched.broken:
            good = False
            print(f"{space.name}: BROKEN after {searched.worlds:,} worlds, {took}")
            _tell(searched.broken)
        else:
            print(
                f"{space.name}: exhausted, {searched.worlds:,} worlds, "
                f"{searched.steps:,} steps, {took}",
                flush=True,
            )
    print(f"\nIn all {worlds:,} worlds and {steps:,} steps. Protocols with a guard missing:\n")
    for mutation in MUTATIONS:
        broken = search(mutation.protocol).broken
        found = broken is not None and broken.promise is mutation.breaks
        good = good and found
        print(f"{'rejected' if found else 'NOT REJECTED'}: {mutation.what} ({mutation.road})")
        if broken:
            _tell(broken)
    return good


def _tell(broken: Broken) -> None:
    print(f"  breaks: {broken.promise}")
    for number, step in enumerate(broken.story, 1):
        print(f"  {number:3}. {step}")
    print(flush=True)


if __name__ == "__main__":
    sys.exit(0 if main("--small" in sys.argv[1:]) else 1)
