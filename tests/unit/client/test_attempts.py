"""The attempts of one call: what is sent, when, and what comes out."""

from __future__ import annotations

import random
import re
import uuid
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idempotency.client.backoff import Fixed, Immediate
from idempotency.client.classification import Trouble, Verdict
from idempotency.client.deadline import Deadline, DeadlineExceeded
from idempotency.client.history import Stop
from idempotency.client.policy import CallPolicy
from idempotency.core.errors import KeyInvalid
from tests.unit.client.acted import IN_USE, Broken, Reply, Stage, problem
from tests.unit.client.clocks import SteeredClock

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.fixture
def clock() -> SteeredClock:
    return SteeredClock(1000.0)


@pytest.fixture
def stage(clock: SteeredClock) -> Stage:
    return Stage(clock)


# --- What is sent again --------------------------------------------------------------------------


def test_a_success_is_sent_once(stage: Stage) -> None:
    play = stage.play(201)
    assert play.result is not None
    assert play.result.unwrap().status_code == 201
    assert (len(play.sent), play.slept) == (1, [])


@pytest.mark.parametrize(
    "end",
    [408, 425, 429, 500, 502, 503, 504, IN_USE, Trouble.CONNECT, Trouble.READ, Trouble.TIMEOUT],
)
def test_a_post_with_a_key_is_sent_again(stage: Stage, end: int | Reply | Trouble) -> None:
    """Never to retry a POST is as wrong as always to."""
    play = stage.play(end, end, 201)
    assert play.result is not None
    assert play.result.unwrap().status_code == 201


@pytest.mark.parametrize("end", [Trouble.TIMEOUT, Trouble.READ, Trouble.WRITE])
def test_a_post_without_a_key_is_not_sent_again_after_a_read_timeout(
    clock: SteeredClock, end: Trouble
) -> None:
    """The work may have been done."""
    stage = Stage(clock, {"policy": CallPolicy(make_keys=False)})
    play = stage.play(end)
    assert play.header("idempotency-key") == [None]
    with pytest.raises(Broken):
        play.result.unwrap()  # type: ignore[union-attr]


def test_a_key_that_the_server_does_not_honour_allows_no_repetition(clock: SteeredClock) -> None:
    stage = Stage(clock, {"policy": CallPolicy(server_dedupes=False)})
    play = stage.play(Trouble.TIMEOUT)
    assert play.header("idempotency-key") != [None]
    assert len(stage.play(Trouble.CONNECT, 201).sent) == 2


@pytest.mark.parametrize("end", [400, 401, 402, 403, 404, 409, 422, Trouble.TLS, Trouble.UNKNOWN])
def test_an_answer_or_an_error_that_no_retry_helps_is_not_sent_again(
    stage: Stage, end: int | Trouble
) -> None:
    """409 and 422 among them: they are retried blindly elsewhere."""
    assert len(stage.play(end).sent) == 1


def test_the_server_can_say_never(stage: Stage) -> None:
    assert len(stage.play(problem(503, "outcome_in_doubt", "never")).sent) == 1


@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
def test_there_are_as_many_attempts_as_the_policy_says_the_first_included(
    clock: SteeredClock, attempts: int
) -> None:
    stage = Stage(clock, {"policy": CallPolicy(attempts=attempts, deadline=900)})
    play = stage.play(*[503] * attempts)
    assert len(play.sent) == attempts
    assert stage.attempts[-1].stop is Stop.ATTEMPTS


def test_by_default_there_are_three_attempts(stage: Stage) -> None:
    assert len(stage.play(503, 503, 503).sent) == 3


# --- The key, the body, the headers --------------------------------------------------------------


def test_the_key_is_made_once_and_is_the_same_on_every_attempt(stage: Stage) -> None:
    keys = stage.play(503, Trouble.TIMEOUT, 201).header("idempotency-key")
    assert len(set(keys)) == 1
    assert UUID.fullmatch(str(keys[0]))
    assert stage.play(201).header("idempotency-key") != keys[:1]


def test_the_key_is_there_before_the_first_attempt(stage: Stage) -> None:
    """Whoever has to keep it can do so in time."""
    loop = stage.open()
    assert UUID.fullmatch(str(loop.key))


def test_a_given_key_is_kept(stage: Stage) -> None:
    key = str(uuid.uuid4())
    assert stage.play(503, 201, key=key).header("idempotency-key") == [key, key]
    play = stage.play(503, 201, headers={"IDEMPOTENCY-KEY": key})
    assert play.header("idempotency-key") == [key, key]
    assert len([name for name in play.sent[0].request.headers if name.lower() == name]) == len(
        play.sent[0].request.headers
    )


@pytest.mark.parametrize(
    ("key", "spelt"),
    [("plain-1", "plain-1"), ("a,b", '"a,b"'), ('q"t', r'"q\"t"'), ("a;b\\", r'"a;b\\"')],
)
def test_a_key_is_quoted_only_where_it_must_be(stage: Stage, key: str, spelt: str) -> None:
    assert stage.play(201, key=key).header("idempotency-key") == [spelt]


@pytest.mark.parametrize("key", ["", "two words", "é", "x" * 256])
def test_what_is_no_key_is_refused_before_anything_is_sent(stage: Stage, key: str) -> None:
    with pytest.raises(KeyInvalid):
        stage.open(key=key)
    assert stage.attempts == []


def test_two_different_keys_are_refused(stage: Stage) -> None:
    with pytest.raises(ValueError, match="two different"):
        stage.open(key="a", headers={"Idempotency-Key": "b"})


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_safe_method_gets_no_key_and_is_sent_again(stage: Stage, method: str) -> None:
    play = stage.play(Trouble.TIMEOUT, 200, method=method)
    assert play.header("idempotency-key") == [None, None]


def test_the_body_has_the_same_bytes_on_every_attempt(stage: Stage) -> None:
    assert [send.request.body for send in stage.play(503, 503, 201).sent] == [b"{}"] * 3


def test_each_attempt_says_which_one_it_is(stage: Stage) -> None:
    marks = stage.play(503, 503, 201).header("x-retry-attempt")
    assert marks == ["1; max=3", "2; max=3", "3; max=3"]


@given(left=st.floats(0.05, 100), timeout=st.floats(0.05, 100), took=st.floats(0, 30))
def test_each_attempt_is_told_a_deadline_below_its_own_and_the_calls(
    left: float, timeout: float, took: float
) -> None:
    clock = SteeredClock(1000.0)
    policy = CallPolicy(attempt_timeout=timeout, deadline=left, backoff=Immediate())
    stage = Stage(clock, {"policy": policy, "breaker": None})
    loop = stage.open()
    step = loop.begin()
    while hasattr(step, "request"):
        told = int(step.request.headers["x-request-deadline-ms"]) / 1000
        assert 0 < told < step.timeout <= timeout + 1e-9
        assert step.timeout < 1000 + left - clock.now
        clock.advance(took)
        step = loop.ended(loop.answered(Reply(503)))
        step = loop.slept() if hasattr(step, "seconds") else step


def test_a_call_without_end_announces_the_attempts_time(stage: Stage) -> None:
    play = stage.play(201, deadline=Deadline.after(float("inf"), clock=stage.clock))
    assert play.header("x-request-deadline-ms") == ["4990"]


# --- Waiting -------------------------------------------------------------------------------------


def test_the_waits_are_those_of_the_backoff(clock: SteeredClock) -> None:
    policy = CallPolicy(attempts=4, backoff=Fixed(0.5))
    assert Stage(clock, {"policy": policy}).play(503, 503, 503, 201).slept == [0.5] * 3


def test_two_calls_do_not_share_a_sequence_of_waits(clock: SteeredClock) -> None:
    stage = Stage(
        clock, {"rng": random.Random(1), "policy": CallPolicy(attempts=4), "breaker": None}
    )
    for _ in range(20):
        first, second, third = stage.play(503, 503, 503, 201).slept
        assert first <= 0.1
        assert second <= 0.2
        assert third <= 0.4


def test_retry_after_is_a_minimum(clock: SteeredClock) -> None:
    stage = Stage(clock, {"policy": CallPolicy(attempts=3, backoff=Fixed(2.5))})
    slept = stage.play(
        Reply(429, {"Retry-After": "4"}), Reply(503, {"retry-after": "1"}), 201
    ).slept
    assert 4 <= slept[0] <= 4.1
    assert slept[1] == 2.5


def test_clients_that_are_told_the_same_time_do_not_return_together(stage: Stage) -> None:
    waits = {stage.play(Reply(503, {"Retry-After": "4"}), 201).slept[0] for _ in range(20)}
    assert len(waits) == 20
    assert all(4 <= wait <= 4.1 for wait in waits)


def test_a_date_to_retry_after_is_read_by_the_servers_own_clock(stage: Stage) -> None:
    """Which may be years from ours."""
    then = 1_000_000_000
    headers = {
        "Date": formatdate(then, usegmt=True),
        "Retry-After": formatdate(then + 7, usegmt=True),
    }
    assert 7 <= stage.play(Reply(503, headers), 201).slept[0] <= 7.1


@pytest.mark.parametrize("value", ["-5", "soon", "1m0s", "9" * 400 + "s"])
def test_a_retry_after_that_says_nothing_sensible_does_not_raise(
    clock: SteeredClock, value: str
) -> None:
    stage = Stage(clock, {"policy": CallPolicy(backoff=Fixed(20.0))})
    play = stage.play(Reply(503, {"Retry-After": value}), 201)
    assert play.slept == [20.0]


def test_a_retry_after_of_an_hour_under_a_deadline_of_10_s_hands_the_answer_over_at_once(
    stage: Stage,
) -> None:
    end = Reply(503, {"Retry-After": "3600"})
    play = stage.play(end, deadline=Deadline.after(10, clock=stage.clock))
    assert play.slept == []
    assert play.result is not None
    assert play.result.unwrap() is end
    assert stage.attempts[-1].stop is Stop.DEADLINE


def test_a_retry_after_of_400_nines_ends_the_call_at_once(stage: Stage) -> None:
    assert stage.play(Reply(503, {"Retry-After": "9" * 400})).slept == []


def test_no_wait_begins_that_the_deadline_would_not_outlast(clock: SteeredClock) -> None:
    stage = Stage(clock, {"policy": CallPolicy(backoff=Fixed(6.0), deadline=10)})
    play = stage.play(503, 503, took=1.0)
    assert play.slept == [6.0]
    assert clock.now == 1008


def test_nothing_is_sent_after_the_deadline(stage: Stage) -> None:
    play = stage.play(deadline=Deadline.after(0.02, clock=stage.clock))
    assert play.sent == []
    with pytest.raises(DeadlineExceeded):
        play.result.unwrap()  # type: ignore[union-attr]


# --- How it ends ---------------------------------------------------------------------------------


def test_the_answer_to_the_last_attempt_is_returned(stage: Stage) -> None:
    last = Reply(503, {}, b"last")
    result = stage.play(Trouble.READ, 503, last).result
    assert result is not None
    assert result.unwrap() is last
    assert result.decision.verdict is Verdict.RETRY


def test_the_error_after_the_last_attempt_is_the_original_one_with_the_history(
    stage: Stage,
) -> None:
    """Not a RetryError around it, and not a complaint that it cannot be retried."""
    play = stage.play(503, Trouble.READ, Trouble.TIMEOUT)
    with pytest.raises(Broken) as raised:
        play.result.unwrap()  # type: ignore[union-attr]
    assert raised.value is play.errors[-1]
    attempts = raised.value.attempts  # type: ignore[attr-defined]
    assert [attempt.reason for attempt in attempts] == ["503", "read", "timeout"]
    assert [attempt.number for attempt in attempts] == [1, 2, 3]
    assert attempts[0].wait == play.slept[0]
    assert raised.value.__notes__[0].startswith("attempt 1 of 3: 503 after 0.00 s, then a wait")
    assert raised.value.__notes__[2] == "attempt 3 of 3: timeout after 0.00 s (attempts)"


def test_the_key_is_on_the_error_for_a_later_repetition_but_in_no_text(stage: Stage) -> None:
    play = stage.play(Trouble.TLS, key="k-secret")
    (error,) = play.errors
    assert error.idempotency_key == "k-secret"  # type: ignore[attr-defined]
    assert "k-secret" not in f"{error!r}{error}{error.__notes__}{play.result!r}{stage.attempts}"


@pytest.mark.parametrize(
    ("ends", "arrived"),
    [
        ((Trouble.CONNECT, Trouble.CONNECT, Trouble.CONNECT), False),
        ((Trouble.TIMEOUT, Trouble.CONNECT, Trouble.CONNECT), True),
        ((503, 503, Trouble.POOL), False),
        ((Trouble.CONNECT, Trouble.WRITE, 503), True),
    ],
)
def test_the_result_tells_whether_any_attempt_may_have_arrived(
    stage: Stage, ends: tuple[int | Trouble, ...], arrived: bool
) -> None:
    """The last one's error speaks for that one only."""
    result = stage.play(*ends).result
    assert result is not None
    assert result.may_have_arrived is arrived


def test_an_attempt_is_timed_by_the_monotonic_clock(stage: Stage) -> None:
    stage.play(503, 201, took=1.5)
    assert [attempt.seconds for attempt in stage.attempts] == [1.5, 1.5]


@pytest.mark.parametrize(
    "policy",
    [
        {"attempts": 0},
        {"attempt_timeout": 0},
        {"attempt_timeout": 0.02},
        {"deadline": 0},
        {"deadline": float("nan")},
        {"margin": 0},
        {"spread": -1},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(policy: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        CallPolicy(**policy)  # type: ignore[arg-type]
