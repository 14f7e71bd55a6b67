"""What every adapter keeps to, whatever its gateway: one suite for all of them.

Two of the benches keep keys; the other two carry out what they are told as often as they are told.
The bare ones differ: our own language has no look-up inside a call, Stripe's has.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways.base import Movement, MovementsUnknown
from tests.integration.gateways.benches import (
    Bench,
    SimulatorBench,
    StripeBench,
    broken,
    busy,
)
from tests.integration.gateways.stripe.servers import Front, Localstripe, StripeRules
from tests.plugins.fault_proxy import Fault
from tests.plugins.gateway import GatewayProcess

KEEPING = ["simulator", "stripe", "stripe in steps"]
FORGETTING = ["simulator without keys", "bare localstripe"]
keeps_keys = pytest.mark.parametrize("bench", KEEPING, indirect=True)

CHARGED = [("charge", 1000)]


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[bool, GatewayProcess]]:
    folder = tmp_path_factory.mktemp("gateways")
    running = {
        True: GatewayProcess(folder / "keeping.sqlite3"),
        False: GatewayProcess(folder / "forgetting.sqlite3", "--no-dedupe"),
    }
    for process in running.values():
        process.start()
    yield running
    for process in running.values():
        process.close()


@pytest.fixture(params=KEEPING + FORGETTING)
def bench(
    request: pytest.FixtureRequest,
    simulators: dict[bool, GatewayProcess],
    localstripe: Localstripe,
) -> Iterator[Bench]:
    benches: dict[str, tuple[Any, str, Callable[[Any], Bench]]] = {
        "simulator": (Front, simulators[True].url, lambda it: SimulatorBench(it, simulators[True])),
        "stripe": (StripeRules, localstripe.url, lambda it: StripeBench(it, localstripe)),
        "stripe in steps": (
            StripeRules,
            localstripe.url,
            lambda it: StripeBench(it, localstripe, capture="manual"),
        ),
        "simulator without keys": (
            Front,
            simulators[False].url,
            lambda it: SimulatorBench(it, simulators[False], keeps_keys=False),
        ),
        "bare localstripe": (Front, localstripe.url, lambda it: StripeBench(it, localstripe)),
    }
    front, upstream, make = benches[request.param]
    with front(upstream) as proxy:
        made = make(proxy)
        yield made
        made.adapter.close()


def settled(outcome: Outcome, look_up: Callable[[], Outcome]) -> Outcome:
    """The outcome, looked up where the call could not tell."""
    return look_up() if isinstance(outcome, Unknown) else outcome


def done(outcome: Outcome) -> str:
    """The gateway's id of what was done."""
    assert isinstance(outcome, Done), outcome
    assert isinstance(outcome.result["id"], str)
    return outcome.result["id"]


def refused(outcome: Outcome) -> None:
    assert isinstance(outcome, Refused), outcome
    assert outcome.result["code"]
    assert outcome.result.keys() >= {"status", "code", "message"}


def posts(fault: Fault) -> Callable[[bytes], Fault]:
    return lambda head: fault if head.startswith(b"POST") else Fault.PASS


# --- Charges


def test_a_charge_moves_the_money_once(bench: Bench) -> None:
    charge = done(bench.charge())
    assert bench.moved() == CHARGED
    assert done(bench.find_charge()) == charge


@keeps_keys
def test_the_same_charge_again_is_the_first_one(bench: Bench) -> None:
    assert done(bench.charge()) == done(bench.charge())
    assert bench.moved() == CHARGED


@keeps_keys
def test_twenty_at_once_are_one_charge(bench: Bench) -> None:
    together = threading.Barrier(20)

    def charge(_: int) -> Outcome:
        together.wait(30)
        return bench.charge()

    with ThreadPoolExecutor(20) as threads:
        outcomes = list(threads.map(charge, range(20)))
    assert {type(outcome) for outcome in outcomes} <= {Done, Unknown}
    assert {done(it) for it in outcomes if isinstance(it, Done)} == {done(bench.find_charge())}
    assert bench.moved() == CHARGED


@keeps_keys
def test_the_key_of_another_charge_moves_nothing_and_says_nothing(bench: Bench) -> None:
    bench.charge()
    outcome = bench.charge(amount=2000)
    assert isinstance(outcome, Unknown), outcome
    assert bench.moved() == CHARGED


@pytest.mark.parametrize("source", ["tok_declined", "tok_unheard_of"])
def test_a_refusal_is_final_and_moves_nothing(bench: Bench, source: str) -> None:
    refused(bench.charge(source))
    refused(bench.charge(source))
    assert bench.moved() == []


def test_a_declined_charge_is_found_as_refused(bench: Bench) -> None:
    bench.charge("tok_declined")
    refused(bench.find_charge())


# --- What happens on the way


@pytest.mark.parametrize("fault", [Fault.LOSE, Fault.CUT])
def test_an_answer_that_does_not_arrive_leaves_one_charge_that_is_found(
    bench: Bench, fault: Fault
) -> None:
    bench.front.plan(fault)
    charge = done(settled(bench.charge(), bench.find_charge))
    assert bench.moved() == CHARGED
    assert done(bench.find_charge()) == charge


def test_a_gateway_that_never_answers_a_charge_has_made_one(bench: Bench) -> None:
    bench.front.choose = posts(Fault.LOSE)
    done(settled(bench.charge(), bench.find_charge))
    assert bench.moved() == CHARGED


def test_with_every_answer_lost_nobody_can_tell(bench: Bench) -> None:
    bench.front.choose = lambda head: Fault.LOSE
    assert isinstance(bench.charge(), Unknown)
    assert isinstance(bench.find_charge(), Unknown)
    bench.front.choose = lambda head: Fault.PASS
    assert len(bench.moved()) <= 1


def test_an_answer_that_is_too_late_leaves_one_charge(bench: Bench) -> None:
    bench.front.plan(Fault.STALL)
    bench.adapter = bench.connect(bench.front.url, timeout=0.25)
    done(settled(bench.charge(), bench.find_charge))
    assert bench.moved() == CHARGED
    bench.adapter.close()


def test_a_charge_that_never_arrives_is_made_later_or_not_at_all(bench: Bench) -> None:
    bench.front.plan(Fault.RESET)
    outcome = bench.charge()
    if bench.keeps_keys:
        done(outcome)
        assert bench.moved() == CHARGED
    else:
        assert isinstance(outcome, Unknown), outcome
        assert isinstance(bench.find_charge(), NotSent)
        assert bench.moved() == []


def test_nobody_there_is_not_sent(bench: Bench) -> None:
    bench.adapter = bench.connect("http://127.0.0.1:1")
    assert isinstance(bench.charge(), NotSent)
    assert isinstance(bench.find_charge(), Unknown)
    bench.adapter.close()


def test_turned_away_is_not_sent(bench: Bench) -> None:
    bench.front.end(busy(), busy(), busy())
    assert isinstance(bench.charge(), NotSent)
    assert isinstance(bench.find_charge(), NotSent)
    assert bench.moved() == []


def test_turned_away_once_is_tried_again(bench: Bench) -> None:
    bench.front.end(busy(), busy())
    done(bench.charge())
    assert bench.moved() == CHARGED


@pytest.mark.parametrize("executed", [True, False], ids=["after the work", "in place of it"])
def test_an_error_of_the_gateways_says_nothing_about_the_money(
    bench: Bench, executed: bool
) -> None:
    bench.front.end(broken(executed=executed))
    outcome = settled(bench.charge(), bench.find_charge)
    if isinstance(outcome, NotSent):
        assert not executed
        assert bench.moved() == []
    else:
        done(outcome)
        assert bench.moved() == CHARGED


# --- Refunds


def test_a_refund_gives_back_once(bench: Bench) -> None:
    charge = done(bench.charge())
    refund = done(bench.refund(charge))
    assert bench.refunded == [("refund", 400)]
    assert done(bench.find_refund(charge)) == refund


@keeps_keys
def test_the_same_refund_again_is_the_first_one(bench: Bench) -> None:
    charge = done(bench.charge())
    assert done(bench.refund(charge)) == done(bench.refund(charge))
    assert bench.refunded == [("refund", 400)]


def test_a_refund_whose_answer_is_lost_is_made_once_and_found(bench: Bench) -> None:
    charge = done(bench.charge())
    bench.front.choose = posts(Fault.LOSE)
    refund = done(settled(bench.refund(charge), lambda: bench.find_refund(charge)))
    assert bench.refunded == [("refund", 400)]
    assert done(bench.find_refund(charge)) == refund


def test_a_refund_of_a_charge_that_does_not_exist_is_refused(bench: Bench) -> None:
    refused(bench.refund("pi_nothing"))


def test_a_refund_above_the_charge_is_refused(bench: Bench) -> None:
    charge = done(bench.charge())
    if not bench.bounds_refunds:
        pytest.skip("localstripe gives back more than was charged")
    refused(bench.refund(charge, amount=1001))
    assert bench.refunded == []


# --- The books


def test_what_was_never_asked_for_is_not_there(bench: Bench) -> None:
    charge = done(bench.charge(reference="ch_of_somebody_else", key=f"other{bench.key}"))
    assert isinstance(bench.find_charge(), NotSent)
    assert isinstance(bench.find_refund(charge), NotSent)


def test_books_that_cannot_be_opened_say_nothing(bench: Bench) -> None:
    bench.front.choose = lambda head: Fault.RESET
    assert isinstance(bench.find_charge(), Unknown)
    assert isinstance(bench.find_refund("pi_1"), Unknown)
    with pytest.raises(MovementsUnknown):
        list(bench.adapter.movements(since=datetime.now(UTC), until=datetime.now(UTC)))


def test_movements_are_what_moved_with_our_names_for_it(bench: Bench) -> None:
    began = datetime.now(UTC) - timedelta(seconds=2)
    charge = done(bench.charge())
    refund = done(bench.refund(charge))
    bench.charge("tok_declined", reference=f"no_{bench.reference}", key=f"no{bench.key}")
    later = datetime.now(UTC) + timedelta(seconds=2)
    listed = {it.id: it for it in bench.adapter.movements(since=began, until=later)}
    ours = [listed[charge], listed[refund]]
    assert [(it.kind, it.amount, it.currency) for it in ours] == [
        ("charge", 1000, "EUR"),
        ("refund", 400, "EUR"),
    ]
    assert [(it.reference, it.key) for it in ours] == [
        (bench.reference, bench.key),
        (f"re_{bench.reference}", f"re{bench.key}"),
    ]
    assert all(began <= it.at < later for it in ours)
    assert f"no_{bench.reference}" not in {it.reference for it in listed.values()}


def test_what_moved_at_another_time_is_not_listed(bench: Bench) -> None:
    done(bench.charge())
    yesterday = datetime.now(UTC) - timedelta(days=1)
    listed: list[Movement] = list(
        bench.adapter.movements(since=yesterday, until=yesterday + timedelta(hours=1))
    )
    assert listed == []
