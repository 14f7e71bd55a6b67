"""Many requests at once, against two processes."""

from collections import Counter

import pytest

from tests.acceptance.product import Product, new_key, together, wait_until
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

ROUNDS = 20
AT_ONCE = 50


def test_case_29_fifty_identical_charges_at_once_charge_once_in_each_of_twenty_rounds(
    product: Product, measured: Measure
) -> None:
    # The first worker answers while the second is still being forked.
    wait_until(lambda: len(product.workers()) == 2)
    statuses: Counter[int] = Counter()
    for _ in range(ROUNDS):
        key = new_key()
        answers = together(AT_ONCE, lambda _, key=key: product.charge(key))
        statuses.update(answer.status_code for answer in answers)
        charged = [answer for answer in answers if answer.status_code == 201]
        first = [answer for answer in charged if "Idempotent-Replayed" not in answer.headers]
        assert len(first) == 1
        assert {answer.content for answer in charged} == {first[0].content}
        assert (product.charged(key), product.effects(key)) == (1, 1)
    assert len(product.gateway.ledger()) == ROUNDS
    assert set(statuses) <= {201, 409}
    product.assert_ledgers_agree()
    measured(f"{ROUNDS} rounds of {AT_ONCE} identical charges, answers by status", dict(statuses))


def test_case_29_fifty_identical_transfers_at_once_move_money_once(product: Product) -> None:
    for _ in range(3):
        key = new_key()
        answers = together(AT_ONCE, lambda _, key=key: product.transfer(key))
        assert {answer.status_code for answer in answers} <= {201, 409}
        first = [
            answer
            for answer in answers
            if answer.status_code == 201 and "Idempotent-Replayed" not in answer.headers
        ]
        assert len(first) == 1
        busy = [answer for answer in answers if answer.status_code == 409]
        assert {answer.json()["code"] for answer in busy} <= {"idempotency_key_in_use"}
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in busy)
        assert product.effects(key) == 1
    product.assert_ledgers_agree()


@pytest.mark.parametrize("kind", ["charge", "transfer"])
def test_case_30_fifty_distinct_keys_at_once_all_succeed(product: Product, kind: str) -> None:
    keys = [new_key() for _ in range(AT_ONCE)]
    answers = together(AT_ONCE, lambda number: product.pay(kind, keys[number]))
    assert Counter(answer.status_code for answer in answers) == {201: AT_ONCE}
    assert [product.effects(key) for key in keys] == [1] * AT_ONCE
    product.assert_ledgers_agree()
