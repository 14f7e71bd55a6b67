"""The checker of histories: what could have been heard one by one, and what could not."""

from __future__ import annotations

import pytest

from tests.integration.portable.model.linearizability import Call, is_linearizable

A, B = 1, 2


def call(asked: str, by: int, answered: str, began: int, ended: int) -> Call:
    return Call(asked, by, answered, began, ended)


GOOD = {
    "one after another": [
        call("claim", A, "won", 0, 1),
        call("claim", B, "busy", 2, 3),
        call("complete x", A, "ok", 4, 5),
        call("claim", B, "replay x", 6, 7),
    ],
    "a replay beside the completion": [
        call("claim", A, "won", 0, 1),
        call("complete x", A, "ok", 2, 9),
        call("claim", B, "replay x", 3, 8),
    ],
    "busy beside the completion": [
        call("claim", A, "won", 0, 1),
        call("complete x", A, "ok", 2, 9),
        call("claim", B, "busy", 3, 8),
    ],
    "a takeover, and an owner that comes too late": [
        call("claim", A, "won", 0, 1),
        call("end lease", 0, "ok", 2, 3),
        call("claim", B, "won", 2, 5),
        call("complete x", A, "lost", 6, 7),
        call("complete y", B, "ok", 6, 8),
    ],
    "won again after a release that was under way": [
        call("claim", A, "won", 0, 1),
        call("release", A, "ok", 2, 9),
        call("claim", B, "won", 3, 4),
    ],
}
BAD = {
    "two owners": [
        call("claim", A, "won", 0, 9),
        call("claim", B, "won", 1, 8),
    ],
    "a replay before the completion began": [
        call("claim", A, "won", 0, 1),
        call("claim", B, "replay x", 2, 3),
        call("complete x", A, "ok", 4, 5),
    ],
    "a replay of another answer": [
        call("claim", A, "won", 0, 1),
        call("complete x", A, "ok", 2, 3),
        call("claim", B, "replay y", 4, 5),
    ],
    "busy after the completion had ended": [
        call("claim", A, "won", 0, 1),
        call("complete x", A, "ok", 2, 3),
        call("claim", B, "busy", 4, 5),
    ],
    "a completion after the takeover": [
        call("claim", A, "won", 0, 1),
        call("end lease", 0, "ok", 2, 3),
        call("claim", B, "won", 4, 5),
        call("complete x", A, "ok", 6, 7),
    ],
    "two completions": [
        call("claim", A, "won", 0, 1),
        call("complete x", A, "ok", 2, 9),
        call("complete y", A, "ok", 3, 8),
    ],
    "a lease that nobody took is lost": [
        call("claim", A, "won", 0, 1),
        call("end lease", 0, "ok", 2, 3),
        call("complete x", A, "lost", 4, 5),
    ],
    "won while the lease runs": [
        call("claim", A, "won", 0, 1),
        call("claim", B, "won", 2, 3),
        call("end lease", 0, "ok", 4, 5),
    ],
}


@pytest.mark.parametrize("story", GOOD)
def test_what_could_be_heard_one_by_one_is_accepted(story: str) -> None:
    assert is_linearizable(GOOD[story])


@pytest.mark.parametrize("story", BAD)
def test_what_could_not_is_rejected(story: str) -> None:
    assert not is_linearizable(BAD[story])


def test_the_same_calls_in_another_order_are_judged_alike() -> None:
    assert is_linearizable(GOOD["one after another"][::-1])
    assert not is_linearizable(BAD["two owners"][::-1])


def test_many_overlapping_calls_are_searched_once_each() -> None:
    """Without a memory this takes 18! orders."""
    claims = [call("claim", number, "busy", 0, 100) for number in range(2, 20)]
    impossible = call("claim", 99, "replay x", 0, 100)

    assert is_linearizable([call("claim", A, "won", 0, 100), *claims[:8]])
    assert not is_linearizable([call("claim", A, "won", 0, 100), *claims[:8], impossible])
