"""What the chaos run is made of: its stream of payments, and the guards that it can do without."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.chaos.intents import Plan, Stream
from tests.chaos.without import GUARDS, Cut
from tests.mutations import ROOT


def test_a_seed_draws_the_same_payments_again_and_another_one_others() -> None:
    first, again, other = Stream(1), Stream(1), Stream(2)
    drawn = [first.draw() for _ in range(50)]
    assert drawn == [again.draw() for _ in range(50)]
    assert [it.amount for it in drawn] != [other.draw().amount for _ in range(50)]


def test_every_payment_has_a_key_of_its_own_and_every_plan_comes_up() -> None:
    stream = Stream(1)
    drawn = [stream.draw() for _ in range(1000)]
    assert len({it.key for it in drawn}) == 1000
    assert set(Counter(it.plan for it in drawn)) == set(Plan)
    assert {it.kind for it in drawn} == {"charge", "refund", "transfer"}
    assert all(it.merchant != it.recipient for it in drawn)


@pytest.mark.parametrize("cut", [cut for cuts in GUARDS.values() for cut in cuts])
def test_every_guard_that_is_taken_away_is_still_there(cut: Cut) -> None:
    assert (ROOT / cut.path).read_text().count(cut.guard) == 1
