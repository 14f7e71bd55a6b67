"""Numbers that the simulator must come to."""

from __future__ import annotations

#: Mean calls of the contention model with base 5 ms and cap 2 s, by number of clients. Its source
#: has no fixed strategy.
CALLS: dict[int, dict[str, float]] = {
    100: {"immediate": 2425, "exponential": 1867, "equal": 814, "full": 796, "decorrelated": 1001},
    1000: {
        "immediate": 188e3,
        "exponential": 74.4e3,
        "equal": 14.7e3,
        "full": 17.0e3,
        "decorrelated": 23.5e3,
    },
    10_000: {
        "immediate": 15.8e6,
        "exponential": 3.12e6,
        "equal": 617e3,
        "full": 848e3,
        "decorrelated": 970e3,
    },
}

#: Good answers a second of the recovery model, after the outage, at 850 calls a second: strategy,
#: ratio of the budget, answers.
GOOD_ANSWERS: list[tuple[str, float | None, float]] = [
    ("no retries", None, 765),
    ("immediate", None, 300),
    ("full", None, 130),
    ("full", 0.1, 801),
]
