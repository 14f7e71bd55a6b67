"""Asking the gateway what became of a call, and what moved in a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways import enquiries
from payments.gateways.base import MovementsUnknown
from tests.integration.gateways.adapter import Connect
from tests.integration.gateways.peers import Play, answers, drops
from tests.plugins.gateway import GatewayProcess

EVER = {"since": datetime(2020, 1, 1, tzinfo=UTC), "until": datetime(2100, 1, 1, tzinfo=UTC)}


def find(gateway: GatewayProcess, connect: Connect, *, key: str = "k1") -> Outcome:
    return connect(gateway.url).adapter.find_charge(reference="ch_1", key=key)


# One call


@pytest.mark.parametrize(
    "stored", [{"key": "k1", "reference": "ch_1"}, {"key": "k1"}, {"reference": "ch_1"}], ids=str
)
def test_a_charge_is_found_by_its_reference_or_by_its_key(
    gateway: GatewayProcess, connect: Connect, stored: dict[str, str]
) -> None:
    made = gateway.charge(**stored).json()
    gateway.charge(key="k2", reference="ch_2")

    assert find(gateway, connect) == Done(made)


def test_a_charge_is_found_when_its_key_is_not_known(
    gateway: GatewayProcess, connect: Connect
) -> None:
    made = gateway.charge(key="k1", reference="ch_1").json()
    gateway.charge(key="k2", reference="ch_2")

    assert find(gateway, connect, key="") == Done(made)


def test_a_declined_charge_is_found_as_refused(gateway: GatewayProcess, connect: Connect) -> None:
    gateway.charge("tok_declined", key="k1", reference="ch_1")

    refused = find(gateway, connect)

    assert isinstance(refused, Refused)
    assert (refused.result["status"], refused.result["code"]) == (402, "card_declined")


def test_what_the_books_do_not_have_was_not_sent(gateway: GatewayProcess, connect: Connect) -> None:
    gateway.charge(key="k2", reference="ch_2")

    assert isinstance(find(gateway, connect), NotSent)
    assert len(gateway.ledger()) == 1


def test_of_several_charges_the_first_that_moved_money_counts(
    gateway: GatewayProcess, connect: Connect
) -> None:
    gateway.control(dedupe=False)
    gateway.charge("tok_declined", key="k1", reference="ch_1")
    first = gateway.charge(key="k1", reference="ch_1").json()
    gateway.charge(key="k1", reference="ch_1")

    assert find(gateway, connect) == Done(first)


def test_a_refund_is_found_among_refunds_and_a_charge_among_charges(
    gateway: GatewayProcess, connect: Connect
) -> None:
    charge = gateway.charge(key="k1", reference="ch_1").json()["id"]
    order = {"charge": charge, "amount": 1, "reference": "re_1"}
    refund = gateway.post("/refunds", order, key="k2").json()
    adapter = connect(gateway.url).adapter

    assert adapter.find_refund(charge=charge, reference="re_1", key="k2") == Done(refund)
    assert isinstance(adapter.find_charge(reference="re_1", key="k2"), NotSent)


def test_a_gateway_that_is_gone_leaves_it_unknown(
    gateway: GatewayProcess, connect: Connect
) -> None:
    gateway.kill()

    assert isinstance(find(gateway, connect), Unknown)


ENTRY = {"id": "gch_1", "status": "succeeded", "reference": "ch_1", "idempotency_key": "k1"}


UNCERTAIN = {
    "no such address": answers(404, {"error": {"code": "not_found"}}),
    "no list": answers(200, {"error": "sorry"}),
    "no JSON": answers(200, b"<html>"),
    "no objects": answers(200, [None]),
    "not done": answers(200, [{**ENTRY, "status": "pending"}]),
    "no id": answers(200, [{**ENTRY, "id": None}]),
    # It does not know the parameter, and shows whatever it has.
    "of others": answers(200, [{**ENTRY, "reference": "ch_2", "idempotency_key": "k2"}]),
    "of all": answers(200, [ENTRY, {**ENTRY, "reference": None, "idempotency_key": None}]),
    "none": drops,
}


@pytest.mark.parametrize("answer", UNCERTAIN.values(), ids=UNCERTAIN)
def test_an_answer_that_says_nothing_certain_leaves_it_unknown(
    play: Play, connect: Connect, answer: Any
) -> None:
    adapter = connect(play(answer).url, attempts=1).adapter

    assert isinstance(adapter.find_charge(reference="ch_1", key="k1"), Unknown)


def test_a_question_is_asked_again_when_its_answer_is_lost(play: Play, connect: Connect) -> None:
    client = connect(play(drops, answers(200, [ENTRY])).url)

    assert client.adapter.find_charge(reference="ch_1", key="k1") == Done(ENTRY)
    assert len(client.pauses) == 1


def test_a_question_takes_a_place_in_the_room(gateway: GatewayProcess, connect: Connect) -> None:
    gateway.charge(key="k1", reference="ch_1")
    adapter = connect(gateway.url, calls=1).adapter

    with adapter.room_for("charge"):
        assert isinstance(adapter.find_charge(reference="ch_1", key="k1"), Unknown)
    assert isinstance(adapter.find_charge(reference="ch_1", key="k1"), Done)


# What moved


def test_movements_are_read_page_by_page_without_what_moved_nothing(
    gateway: GatewayProcess, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enquiries, "PAGE", 2)
    for number in range(4):
        gateway.charge(key=f"k{number}", reference=f"ch_{number}")
    gateway.charge("tok_declined", key="no", reference="no")
    order = {"charge": gateway.ledger()[0]["id"], "amount": 1}
    gateway.post("/refunds", order)

    moved = list(connect(gateway.url).adapter.movements(**EVER))

    assert [movement.id for movement in moved] == [entry["id"] for entry in gateway.ledger()]
    first, last = moved[0], moved[-1]
    assert (first.kind, first.amount, first.currency) == ("charge", 1000, "EUR")
    assert (first.reference, first.key) == ("ch_0", "k0")
    assert (last.kind, last.amount, last.reference, last.key) == ("refund", 1, "", "")


def test_movements_begin_with_since_and_end_before_until(
    gateway: GatewayProcess, connect: Connect
) -> None:
    for number in range(3):
        gateway.charge(key=f"k{number}", reference=f"ch_{number}")
    times = [datetime.fromisoformat(entry["created"]) for entry in gateway.ledger()]
    adapter = connect(gateway.url).adapter
    until = times[2].astimezone(timezone(timedelta(hours=5)))

    moved = list(adapter.movements(since=times[1], until=until))

    assert [movement.reference for movement in moved] == ["ch_1"]
    assert moved[0].at == times[1]


def test_a_list_that_breaks_off_is_no_list(play: Play, connect: Connect) -> None:
    page = [{"id": "gch_1"}]
    for answer in (drops, answers(200, page), answers(500, page)):
        adapter = connect(play(answer).url, attempts=1).adapter
        with pytest.raises(MovementsUnknown):
            list(adapter.movements(**EVER))


def test_a_gateway_that_does_not_turn_the_page_is_not_read_for_ever(
    gateway: GatewayProcess, play: Play, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enquiries, "PAGE", 1)
    gateway.charge(reference="ch_1")
    same = answers(200, gateway.ledger())

    with pytest.raises(MovementsUnknown, match="page"):
        list(connect(play(same, same, same).url).adapter.movements(**EVER))


@pytest.mark.parametrize(
    "question",
    [
        "/charges",
        "/charges?key=a&key=b",
        "/charges?name=a",
        "/ledger?limit=0",
        "/ledger?since=yesterday",
        "/ledger?until=2026-01-01T00:00:00",
    ],
)
def test_a_question_that_means_nothing_is_refused(gateway: GatewayProcess, question: str) -> None:
    assert gateway.get(question).status_code == 400
