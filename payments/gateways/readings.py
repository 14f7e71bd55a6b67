"""How each attempt at the gateway ended: for the loop of attempts, and for the call as a whole.

The loop decides about the next attempt, and a status says too little for that: what happened to
the money is in the body. So each answer is read here, on its way from the network to the loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import httpx2

from idempotency.client import Answer as Status
from idempotency.client import Decision, Trouble, Verdict
from idempotency.client import Outcome as Health
from idempotency.client import classify as classify_status
from idempotency.client.httpx2_transports import Httpx2Transport
from idempotency.client.messages import Request
from idempotency.client.retry_after import parse
from idempotency.client.transports import Cancellation, NoAnswer
from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from payments.gateways.answers import Answer, classify

#: A gateway that asks for a longer wait (seconds) is not asked again by this call.
RETRY_AFTER_LIMIT = 2.0
#: An attempt that had less than this part of its timeout was cut short by the request's deadline.
CUT_SHORT = 0.9


class Findings:
    """What the attempts of one call say about the money. Safe for the threads of a race."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unheard = 0
        self._ends: list[Outcome] = []

    def sent(self) -> None:
        """An attempt begins."""
        with self._lock:
            self._unheard += 1

    def heard(self, outcome: Outcome) -> None:
        """It ended like this."""
        with self._lock:
            self._unheard -= 1
            self._ends.append(outcome)

    def outcome(self) -> Outcome | None:
        """What they come to together; None when there was no attempt."""
        with self._lock:
            ends, unheard = list(self._ends), self._unheard
        for final in (Done, Refused):
            if found := next((end for end in ends if isinstance(end, final)), None):
                return found
        # "Not sent" speaks for its own attempt only: another one may have moved the money.
        doubts = [end for end in ends if isinstance(end, Unknown)]
        if unheard:
            doubts.append(Unknown("an attempt was not waited for"))
        return next(iter(doubts + ends[-1:]), None)

    @property
    def in_doubt(self) -> bool:
        """Whether an attempt has ended that may have moved the money."""
        with self._lock:
            return any(isinstance(end, Unknown) for end in self._ends)


_findings: ContextVar[Findings] = ContextVar("findings")


def findings() -> Findings:
    """Those of the call that this code works for."""
    return _findings.get()


@contextmanager
def collecting() -> Iterator[Findings]:
    """Collect the findings of the call inside the block."""
    token = _findings.set(Findings())
    try:
        yield _findings.get()
    finally:
        _findings.reset(token)


class ReadHeaders(dict[str, str]):
    """The loop's classifier is shown a status and headers: what the body said goes with them."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer of the gateway that has been read."""

    status_code: int
    headers: ReadHeaders
    content: bytes


class ReadingTransport:
    """The transport below, and every end of an attempt noted in the findings of its call."""

    def __init__(
        self,
        transport: Httpx2Transport,
        *,
        timeout: float,
        read: Callable[[httpx2.Response], Answer] | None = None,
    ) -> None:
        """``timeout``: seconds that an attempt has when nobody is in a hurry. ``read``: for a
        gateway whose answers are in another language."""
        self._transport = transport
        self._timeout = timeout
        self._read = read or _read

    def send(
        self,
        request: Request,
        timeout: float,
        cancellation: Cancellation | None = None,
        *,
        granted: float | None = None,
    ) -> Reading:
        """Send the request once. Raises ``NoAnswer``. ``granted``: what the loop gave the attempt,
        where part of that is spent already."""
        findings = _findings.get()
        findings.sent()
        try:
            response = self._transport.send(request, timeout, cancellation)
        except NoAnswer as none:
            findings.heard(_unanswered(none))
            timed_out = isinstance(none.error, httpx2.TimeoutException)
            if timed_out and self._is_cut_short(granted or timeout):
                # The caller was in a hurry. Were it the gateway's failure, a few callers with
                # short deadlines could open the breaker for everybody.
                raise NoAnswer(Trouble.CANCELLED, none.error) from none.error
            raise
        headers = ReadHeaders(response.headers)
        headers.answer = self._read(response)
        findings.heard(headers.answer.outcome)
        return Reading(response.status_code, headers, response.content)

    def close(self) -> None:
        """Close this process's connections; a later attempt opens new ones."""
        self._transport.close()

    def _is_cut_short(self, timeout: float) -> bool:
        return timeout < CUT_SHORT * self._timeout


def decide(end: Status | Trouble, *, method: str, keyed: bool) -> Decision:
    """What the loop does after an attempt. ``keyed``: a repeat cannot move money again."""
    decision = classify_status(end, method=method, keyed=keyed)
    if isinstance(end, Trouble):
        return decision
    if not isinstance(end.headers, ReadHeaders):
        raise TypeError("this answer did not come through a ReadingTransport")
    answer = end.headers.answer
    # A success that cannot be read is none.
    damaged = end.status < 400 and not isinstance(answer.outcome, Done)
    health = Health.FAILURE if damaged else decision.health
    return replace(decision, verdict=_verdict(answer, keyed), health=health)


def _verdict(answer: Answer, repeatable: bool) -> Verdict:
    if isinstance(answer.outcome, Done):
        return Verdict.SUCCESS
    if isinstance(answer.outcome, Refused):
        return Verdict.ANSWER
    patient = (answer.retry_after or 0) <= RETRY_AFTER_LIMIT
    again = repeatable or isinstance(answer.outcome, NotSent)
    return Verdict.RETRY if answer.passing and patient and again else Verdict.STOP


def _read(response: httpx2.Response) -> Answer:
    return classify(response.status_code, response.content, wait_asked_for(response))


def wait_asked_for(response: httpx2.Response) -> float | None:
    """Seconds that the gateway asks to wait; None where it does not, or not so that it can be
    read."""
    headers = response.headers
    return parse(headers.get("Retry-After"), response_date=headers.get("Date"), now=time.time())


def _unanswered(none: NoAnswer) -> Outcome:
    name = type(none.error).__name__
    if none.trouble.may_have_arrived:
        return Unknown(f"no answer from the gateway ({name})")
    return NotSent(f"no connection to the gateway ({name})")
