"""The protocol of one key, every interleaving of it: see `tests/specification`."""

from __future__ import annotations

from dataclasses import fields

import pytest

from tests.specification.mutations import MUTATIONS, Mutation
from tests.specification.rules import Guards
from tests.specification.search import search
from tests.specification.spaces import SMALL, Space

#: Fewer worlds than this, and steps of somebody have been lost.
FLOOR = {"atomic": 4_000, "operation": 3_000}


@pytest.mark.parametrize("space", SMALL, ids=lambda space: space.name)
def test_every_promise_holds_in_every_world_that_can_be_reached(space: Space) -> None:
    searched = search(space.protocol)

    assert searched.broken is None
    assert searched.worlds > FLOOR[space.name.split(",")[0]]
    assert searched.steps > 5 * searched.worlds


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.guard)
def test_a_protocol_with_a_guard_missing_is_rejected(mutation: Mutation) -> None:
    broken = search(mutation.protocol).broken

    assert broken is not None
    assert broken.promise is mutation.breaks, broken.story


def test_each_guard_is_missed_once() -> None:
    assert [mutation.guard for mutation in MUTATIONS] == [guard.name for guard in fields(Guards)]


def test_a_story_is_a_shortest_one() -> None:
    [mutation] = [one for one in MUTATIONS if one.guard == "claim_respects_lease"]

    broken = search(mutation.protocol).broken

    assert broken is not None
    assert broken.story == (
        "client A looks",
        "client A claims the key",
        "client B looks",
        "client B claims the key",
    )
