"""The simulated gateway over real HTTP: it is the ground truth, so it is held to its word."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from tests.plugins.gateway import LOST, PATIENCE, GatewayProcess


def together(count: int, call: Callable[[int], Any]) -> list[Any]:
    """Run the calls in threads that all start at the same moment."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait(PATIENCE)
        return call(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


# Sources


@pytest.mark.parametrize(
    ("source", "outcomes", "charged_after_first"),
    [
        ("tok_visa", [201, 201], 1),
        ("tok_declined", [402, 402], 0),
        ("tok_slow", [201, 201], 1),
        ("tok_answer_lost", [LOST, 201, 201], 1),
        ("tok_error_before", [500, 500, 201, 201], 0),
        ("tok_error_after", [500, 201, 201], 1),
        ("tok_busy", [429, 429, 201, 201], 0),
        ("tok_down", [503, 503, 503, 503], 0),
    ],
)
def test_source_behaves_as_documented_and_never_charges_a_key_twice(
    gateway: GatewayProcess, source: str, outcomes: list[int | str], charged_after_first: int
) -> None:
    assert gateway.outcome(source) == outcomes[0]
    assert len(gateway.ledger()) == charged_after_first
    assert [gateway.outcome(source) for _ in outcomes[1:]] == outcomes[1:]
    assert len(gateway.ledger()) == (1 if 201 in outcomes else 0)


def test_misbehaviour_is_counted_for_each_key(gateway: GatewayProcess) -> None:
    assert [gateway.outcome("tok_busy", key="a") for _ in range(2)] == [429, 429]
    assert gateway.outcome("tok_busy", key="b") == 429
    assert gateway.outcome("tok_busy", key="a") == 201


def test_unavailable_answers_say_that_nothing_was_processed_and_errors_do_not_say(
    gateway: GatewayProcess,
) -> None:
    busy = gateway.charge("tok_busy", key="a")
    down = gateway.charge("tok_down", key="b")
    before = gateway.charge("tok_error_before", key="c")
    after = gateway.charge("tok_error_after", key="d")
    assert busy.headers["Retry-After"] == "1"
    assert busy.json()["error"]["processed"] is False
    assert down.json()["error"]["processed"] is False
    assert "processed" not in before.json()["error"]
    assert before.content == after.content  # a caller cannot tell whether it was charged


def test_slow_charge_holds_nobody_else_up(gateway: GatewayProcess) -> None:
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(gateway.charge, "tok_slow", key="slow")
        gateway.charge("tok_visa", key="quick").raise_for_status()
        assert not slow.done()
        assert [entry["idempotency_key"] for entry in gateway.ledger()] == ["quick"]
        assert slow.result().status_code == 201


def test_declined_charge_is_found_by_its_key_but_moves_no_money(gateway: GatewayProcess) -> None:
    answer = gateway.charge("tok_declined", key="k1")
    assert answer.json()["error"]["code"] == "card_declined"
    (charge,) = gateway.charges("k1")
    assert (charge["status"], charge["amount"]) == ("declined", 1000)
    assert gateway.ledger() == []


# Answers and the ledger


def test_charge_and_its_refund_appear_in_the_ledger_in_order(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1", amount=700, currency="JPY", reference="ch_1").json()
    order = {"charge": charge["id"], "amount": 200, "reference": "re_1"}
    refund = gateway.post("/refunds", order, key="k2").json()
    names = ("id", "kind", "amount", "currency", "idempotency_key", "reference")
    assert [tuple(entry[name] for name in names) for entry in gateway.ledger()] == [
        (charge["id"], "charge", 700, "JPY", "k1", "ch_1"),
        (refund["id"], "refund", 200, "JPY", "k2", "re_1"),
    ]
    assert all(entry["created"].endswith("+00:00") for entry in gateway.ledger())
    assert [entry["id"] for entry in gateway.refunds("k2")] == [refund["id"]]
    assert gateway.charges("k2") == []


def test_replay_is_the_first_answer_marked(gateway: GatewayProcess) -> None:
    first = gateway.charge(key="k1")
    replay = gateway.charge(key="k1")
    assert replay.content == first.content
    assert "Idempotent-Replayed" not in first.headers
    assert replay.headers["Idempotent-Replayed"] == "true"


def test_requests_without_a_key_each_charge(gateway: GatewayProcess) -> None:
    assert [gateway.outcome("tok_visa", key=None) for _ in range(2)] == [201, 201]
    assert len(gateway.ledger()) == 2


@pytest.mark.parametrize(
    "change", [{"amount": 1001}, {"currency": "USD"}, {"source": "tok_slow"}, {"reference": "x"}]
)
def test_key_is_bound_to_the_parameters_it_was_first_seen_with(
    gateway: GatewayProcess, change: dict[str, Any]
) -> None:
    first = gateway.charge(key="k1")
    other = gateway.charge(key="k1", **change)
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert gateway.charge(key="k1").content == first.content
    assert len(gateway.ledger()) == 1


def test_key_is_bound_even_when_its_first_request_failed(gateway: GatewayProcess) -> None:
    assert gateway.charge("tok_error_before", key="k1").status_code == 500
    assert gateway.charge("tok_error_before", key="k1", amount=1).status_code == 422


def test_key_of_a_charge_does_not_serve_for_a_refund(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1").json()
    refund = gateway.post("/refunds", {"charge": charge["id"], "amount": 1}, key="k1")
    assert (refund.status_code, refund.json()["error"]["code"]) == (422, "idempotency_key_reused")


# Refunds


def test_refunds_never_exceed_the_charge(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1", amount=100).json()["id"]
    statuses = [
        gateway.post("/refunds", {"charge": charge, "amount": amount}).status_code
        for amount in (60, 41, 40, 1)
    ]
    assert statuses == [201, 422, 201, 422]


def test_refunds_that_race_never_exceed_the_charge(gateway: GatewayProcess) -> None:
    charge = gateway.charge(key="k1", amount=100).json()["id"]
    order = {"charge": charge, "amount": 30}
    answers = together(10, lambda n: gateway.post("/refunds", order, key=f"r{n}").status_code)
    assert sorted(answers) == [201] * 3 + [422] * 7


def test_only_a_charge_that_succeeded_can_be_refunded(gateway: GatewayProcess) -> None:
    gateway.charge("tok_declined", key="k1")
    (declined,) = gateway.charges("k1")
    charge = gateway.charge(key="k2").json()
    refund = gateway.post("/refunds", {"charge": charge["id"], "amount": 1}).json()
    for target in (declined["id"], refund["id"], "gch_0"):
        answer = gateway.post("/refunds", {"charge": target, "amount": 1})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "charge_unknown")


# Concurrency


@pytest.mark.parametrize("source", ["tok_visa", "tok_slow"])
def test_twenty_requests_with_one_key_at_once_are_one_charge(
    gateway: GatewayProcess, source: str
) -> None:
    answers = together(20, lambda _: gateway.charge(source, key="k1"))
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert len(gateway.ledger()) == 1


def test_failures_are_counted_exactly_when_requests_race(gateway: GatewayProcess) -> None:
    statuses = together(10, lambda _: gateway.charge("tok_busy", key="k1").status_code)
    assert sorted(statuses) == [201] * 8 + [429] * 2
    assert len(gateway.ledger()) == 1


# The hostile gateway


def test_without_dedupe_every_request_charges_anew(
    start_gateway: Callable[..., GatewayProcess],
) -> None:
    hostile = start_gateway("--no-dedupe")
    answers = together(5, lambda _: hostile.charge(key="k1"))
    assert len({answer.json()["id"] for answer in answers}) == 5
    assert len(hostile.ledger()) == len(hostile.charges("k1")) == 5


def test_without_dedupe_a_retry_after_a_lost_answer_charges_twice(gateway: GatewayProcess) -> None:
    gateway.control(dedupe=False)
    assert [gateway.outcome("tok_answer_lost") for _ in range(2)] == [LOST, 201]
    assert len(gateway.ledger()) == 2


def test_dedupe_switched_on_again_answers_with_the_first_charge(gateway: GatewayProcess) -> None:
    gateway.control(dedupe=False)
    first = gateway.charge(key="k1").json()
    gateway.charge(key="k1")
    gateway.control(dedupe=True)
    assert gateway.charge(key="k1").json() == first


# Switches


def test_gateway_that_is_down_charges_nothing_and_still_shows_its_ledger(
    gateway: GatewayProcess,
) -> None:
    charge = gateway.charge(key="k1").json()
    gateway.control(down=True)
    refund = gateway.post("/refunds", {"charge": charge["id"], "amount": 1}, key="k2")
    assert {gateway.outcome("tok_visa", key=key) for key in ("k1", "k3")} == {503}
    assert (refund.status_code, refund.json()["error"]["processed"]) == (503, False)
    assert len(gateway.ledger()) == 1
    gateway.control(down=False)
    assert gateway.outcome("tok_visa", key="k3") == 201


def test_delay_comes_before_the_charge(gateway: GatewayProcess) -> None:
    gateway.control(delay=600)
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(
            f"{gateway.url}/charges",
            json={"amount": 1, "currency": "EUR", "source": "tok_visa"},
            timeout=0.5,
            trust_env=False,
        )
    assert gateway.ledger() == []
    gateway.control(delay=0)
    assert gateway.outcome("tok_visa") == 201


def test_unknown_or_malformed_switches_are_refused(gateway: GatewayProcess) -> None:
    malformed: list[Any] = [{"down": 1}, {"dedupe": "no"}, {"delay": -1}, {"delay": True}]
    for switches in (*malformed, {"slow": True}, [], None):
        assert gateway.post("/control", switches).status_code == 400, switches
    assert gateway.outcome("tok_visa") == 201
