"""Whether the checker of the chaos run finds what must not be: violations of each rule are planted.

A run in which nothing is found says something only if the checker would have found it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.chaos.checker import check
from tests.chaos.facts import (
    Answer,
    Client,
    Event,
    Facts,
    Line,
    Moved,
    Movement,
    Posting,
    Row,
    answer_of,
    traffic_of,
)

LEASE = 3.0


def made(resource: str) -> Answer:
    return answer_of(201, f"/v1/{resource}", json.dumps({"id": resource}))


def refused(status: int, code: str) -> Answer:
    return answer_of(status, "", json.dumps({"code": code}))


DECLINED = refused(402, "card_declined")
ENDED = refused(410, "force_failed")
AGAIN = refused(503, "outcome_pending")


def sound() -> Facts:
    """A charge, a refund of it, a transfer, a decline, a charge that an operator left open, and a
    client that never came back."""
    charge, refund, transfer = made("ch_1"), made("re_1"), made("tr_1")
    facts = Facts(LEASE)
    for number, (kind, answer) in enumerate(
        [
            ("charge", charge),
            ("refund", refund),
            ("transfer", transfer),
            ("charge", DECLINED),
            ("charge", ENDED),
        ],
        start=1,
    ):
        client = Client(f"k{number}", kind, requests=2, answers={answer, AGAIN})
        facts.clients[client.key] = client
        facts.rows.append(Row(number, client.key, "succeeded", 100.0, "prepared", answer))
    facts.rows[2].recovery_point = ""
    facts.rows[4].events.append(Event("force_failed", 101.0, 1, {"final": True}))
    facts.clients["k6"] = Client("k6", "transfer", returns=False, requests=1)
    facts.rows.append(Row(6, "k6", "failed"))
    facts.movements = [
        Movement("charge", "ch_1", 1, "succeeded", 100, "EUR", "gch_1"),
        Movement("refund", "re_1", 2, "succeeded", 10, "EUR", "gre_1"),
        Movement("transfer", "tr_1", 3, "succeeded", 5, "EUR"),
        Movement("charge", "ch_4", 4, "declined", 7, "EUR"),
        Movement("charge", "ch_5", 5, "pending", 9, "EUR"),
    ]
    facts.moved = [
        Moved("gch_1", "charge", 100, "EUR", "ch_1"),
        Moved("gre_1", "refund", 10, "EUR", "re_1"),
        Moved("gch_5", "charge", 9, "EUR", "ch_5"),
    ]
    facts.postings = [
        Posting(1, "charge", "ch_1"),
        Posting(2, "refund_hold", "re_1"),
        Posting(3, "refund_settlement", "re_1"),
        Posting(4, "transfer", "tr_1"),
        Posting(5, "funding"),
    ]
    facts.lines = [Line(1, 1, 100, "EUR"), Line(1, 9, -100, "EUR")]
    facts.balances = {1: 100}
    return facts


def found(facts: Facts) -> set[tuple[str, str]]:
    return {(it.rule, it.key) for it in check(facts)}


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    assert check(sound()) == []


def _charged_twice(facts: Facts) -> None:
    facts.moved.append(Moved("gch_9", "charge", 100, "EUR", "ch_1"))


def _charged_again_under_another_charge(facts: Facts) -> None:
    facts.movements.append(Movement("charge", "ch_9", 1, "withdrawn", 100, "EUR"))
    facts.moved.append(Moved("gch_9", "charge", 100, "EUR", "ch_9"))


def _moved_twice_here(facts: Facts) -> None:
    facts.movements.append(Movement("transfer", "tr_9", 3, "succeeded", 5, "EUR"))
    facts.postings.append(Posting(9, "transfer", "tr_9"))


def _two_rows(facts: Facts) -> None:
    facts.rows.append(replace(facts.rows[0], id=9))


def _booked_and_never_charged(facts: Facts) -> None:
    del facts.moved[0]


def _charged_and_never_booked(facts: Facts) -> None:
    facts.movements[0] = replace(facts.movements[0], status="pending")


def _another_amount_there(facts: Facts) -> None:
    facts.moved[0] = replace(facts.moved[0], amount=101)


def _another_id_there(facts: Facts) -> None:
    facts.moved[0] = replace(facts.moved[0], id="gch_9")


def _not_posted(facts: Facts) -> None:
    del facts.postings[3]


def _a_withdrawn_refund_that_kept_its_hold(facts: Facts) -> None:
    facts.movements[1] = replace(facts.movements[1], status="withdrawn")
    del facts.moved[1], facts.postings[2]


def _two_answers(facts: Facts) -> None:
    facts.clients["k3"].answers.add(answer_of(201, "/v1/tr_1", '{"id":  "tr_1"}'))


def _kept_is_another(facts: Facts) -> None:
    facts.rows[2].kept = answer_of(201, "/v1/tr_1", '{"id":  "tr_1"}')


def _answered_and_forgotten(facts: Facts) -> None:
    del facts.rows[3], facts.movements[3]


def _answered_and_failed(facts: Facts) -> None:
    facts.rows[3].state, facts.rows[3].kept = "failed", None


def _told_of_what_is_not_there(facts: Facts) -> None:
    facts.clients["k3"].answers = {made("tr_8")}
    facts.rows[2].kept = made("tr_8")


def _told_before_it_was_undone(facts: Facts) -> None:
    facts.movements[0] = replace(facts.movements[0], status="withdrawn")


def _refused_and_done(facts: Facts) -> None:
    facts.clients["k1"].answers = {DECLINED}
    facts.rows[0].kept = DECLINED


def _kept_a_success_nobody_heard(facts: Facts) -> None:
    facts.rows[5].state, facts.rows[5].kept = "succeeded", made("tr_6")


def _running(facts: Facts) -> None:
    facts.rows[5].state = "processing"


def _in_doubt(facts: Facts) -> None:
    facts.rows[5].state = "in_doubt"


def _failed_and_done(facts: Facts) -> None:
    facts.movements.append(Movement("transfer", "tr_6", 6, "succeeded", 5, "EUR"))
    facts.postings.append(Posting(6, "transfer", "tr_6"))


def _failed_and_charged(facts: Facts) -> None:
    facts.movements.append(Movement("charge", "ch_6", 6, "withdrawn", 5, "EUR"))
    facts.moved.append(Moved("gch_6", "charge", 5, "EUR", "ch_6"))


def _pending_for_nobody(facts: Facts) -> None:
    facts.movements.append(Movement("charge", "ch_6", 6, "pending", 5, "EUR"))


def _never_answered(facts: Facts) -> None:
    facts.clients["k6"].returns = True


def _another_request_replayed(facts: Facts) -> None:
    facts.clients["k1"].answers.add(replace(made("ch_1"), other=True))


def _a_500(facts: Facts) -> None:
    facts.clients["k3"].answers.add(answer_of(500, "", "<h1>Server Error</h1>"))


def _ended_and_answered(facts: Facts) -> None:
    facts.rows[2].events.append(Event("force_failed", 101.0, 1, {"final": True}))


def _ended_before_it_began_and_done(facts: Facts) -> None:
    facts.rows[4].recovery_point = ""


def _ended_and_charged_twice(facts: Facts) -> None:
    facts.moved.append(Moved("gch_8", "charge", 9, "EUR", "ch_5"))


def _taken_over_early(facts: Facts) -> None:
    facts.rows[2].events.append(Event("takeover", 101.0, 2))


def _taken_over_early_later_on(facts: Facts) -> None:
    facts.rows[2].events += [Event("takeover", 104.0, 2), Event("takeover", 106.0, 3)]


def _a_movement_of_no_key(facts: Facts) -> None:
    facts.movements.append(Movement("transfer", "tr_9", 77, "succeeded", 5, "EUR"))


def _a_movement_of_no_request(facts: Facts) -> None:
    facts.movements.append(Movement("transfer", "tr_9", None, "succeeded", 5, "EUR"))


def _money_moved_for_nobody(facts: Facts) -> None:
    facts.moved.append(Moved("gch_9", "charge", 5, "EUR", "ch_9"))


def _unbalanced(facts: Facts) -> None:
    facts.lines[0] = replace(facts.lines[0], amount=99)
    facts.balances = {1: 99}


def _drifted(facts: Facts) -> None:
    facts.balances = {1: 101}


PLANTED: list[tuple[Callable[[Facts], None], str, str]] = [
    (_charged_twice, "one effect", "k1"),
    (_charged_again_under_another_charge, "one effect", "k1"),
    (_moved_twice_here, "one effect", "k3"),
    (_two_rows, "one effect", "k1"),
    (_ended_and_charged_twice, "one effect", "k5"),
    (_booked_and_never_charged, "books agree", "k1"),
    (_charged_and_never_booked, "books agree", "k1"),
    (_another_amount_there, "books agree", "k1"),
    (_another_id_there, "books agree", "k1"),
    (_not_posted, "books agree", "k3"),
    (_a_withdrawn_refund_that_kept_its_hold, "books agree", "k2"),
    (_a_movement_of_no_key, "books agree", ""),
    (_a_movement_of_no_request, "books agree", ""),
    (_money_moved_for_nobody, "books agree", ""),
    (_two_answers, "answers agree", "k3"),
    (_kept_is_another, "answers agree", "k3"),
    (_answered_and_forgotten, "answers agree", "k4"),
    (_answered_and_failed, "answers agree", "k4"),
    (_told_of_what_is_not_there, "answer tells", "k3"),
    (_told_before_it_was_undone, "answer tells", "k1"),
    (_refused_and_done, "answer tells", "k1"),
    (_kept_a_success_nobody_heard, "answer tells", "k6"),
    (_running, "settled", "k6"),
    (_in_doubt, "settled", "k6"),
    (_failed_and_done, "settled", "k6"),
    (_failed_and_charged, "settled", "k6"),
    (_pending_for_nobody, "settled", "k6"),
    (_never_answered, "settled", "k6"),
    (_another_request_replayed, "other request", "k1"),
    (_a_500, "no 500", "k3"),
    (_ended_and_answered, "ended for good", "k3"),
    (_ended_before_it_began_and_done, "ended for good", "k5"),
    (_taken_over_early, "lease", "k3"),
    (_taken_over_early_later_on, "lease", "k3"),
    (_unbalanced, "sums", ""),
    (_drifted, "sums", ""),
]


@pytest.mark.parametrize(
    ("plant", "rule", "key"), PLANTED, ids=[plant.__name__[1:] for plant, _, _ in PLANTED]
)
def test_what_is_wrong_is_found(plant: Callable[[Facts], None], rule: str, key: str) -> None:
    facts = sound()
    plant(facts)
    assert (rule, key) in found(facts)


@pytest.mark.parametrize(
    "events",
    [
        [Event("takeover", 103.0, 2)],
        [Event("suspended", 100.5, 1), Event("takeover", 100.6, 2)],
        [Event("force_failed", 100.5, 1, {"final": False}), Event("takeover", 100.6, 2)],
        # The second attempt began when nobody wrote: the key had failed in between.
        [Event("takeover", 104.0, 3)],
    ],
)
def test_a_takeover_that_waited_or_had_not_to_is_none(events: list[Event]) -> None:
    facts = sound()
    facts.rows[2].events += events
    assert check(facts) == []


def test_a_500_that_was_asked_for_is_none() -> None:
    facts = sound()
    _a_500(facts)
    facts.clients["k3"].fault = "commit"
    assert check(facts) == []


# --- The history ----------------------------------------------------------------------------------


def history(*events: dict[str, Any]) -> Any:
    intent = {"event": "intent", "key": "k1", "kind": "transfer", "returns": True}
    return traffic_of([intent, *events])


def sent(number: int, body: str = "{}", **about: Any) -> dict[str, Any]:
    return {"event": "sent", "key": "k1", "number": number, "body": body, **about}


def answer(number: int, status: int, body: str, **about: Any) -> dict[str, Any]:
    told = {"status": status, "body": body, "location": "", "replayed": False}
    return {"event": "answer", "key": "k1", "number": number, **told, **about}


def test_answers_to_another_body_are_told_apart() -> None:
    problem = '{"code": "idempotency_key_reused"}'
    traffic = history(
        sent(1), answer(1, 201, '{"id": "tr_1"}'), sent(2, "other"), answer(2, 422, problem)
    )
    heard = {(it.status, it.other) for it in traffic.clients["k1"].answers}
    assert heard == {(201, False), (422, True)}


def test_equal_answers_are_one_and_a_byte_makes_two() -> None:
    traffic = history(
        sent(1),
        answer(1, 201, '{"id": "tr_1"}'),
        sent(2),
        answer(2, 201, '{"id": "tr_1"}', replayed=True),
    )
    assert len({it.print for it in traffic.clients["k1"].finals()}) == 1
    traffic = history(
        sent(1), answer(1, 201, '{"id": "tr_1"}'), sent(2), answer(2, 201, '{"id":"tr_1"}')
    )
    assert len({it.print for it in traffic.clients["k1"].finals()}) == 2


def test_it_counts() -> None:
    lost = {"event": "no_answer", "key": "k1", "number": 1, "why": "ReadError"}
    traffic = history(
        sent(1, fault="kill@work"), lost, sent(2), answer(2, 201, '{"id": "a"}', replayed=True)
    )
    assert (traffic.requests, traffic.retries, traffic.replays) == (2, 1, 1)
    assert traffic.unanswered == {"ReadError": 1}
    assert traffic.asked_faults == {"kill@work": 1}
    assert not history(sent(1), lost).clients["k1"].finals()
