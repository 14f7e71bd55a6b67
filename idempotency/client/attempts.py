"""The attempts of one call, without any I/O: what to do next, told what came of it.

::

    begin() ──▶ Send ──ended()──▶ Sleep ──slept()──▶ Send ──ended()──▶ … ──▶ Done
      └──────────▶ Done (the breaker is open, or no time is left)

A driver does what each step says and reports: ``Caller`` with threads, ``AsyncCaller`` with tasks.
The order of the layers, outermost first: deadline → attempts (budget) → breaker → hedge → timeout
of an attempt → transport.

- n attempts at failure rate p are (1 - pⁿ)/(1 - p) requests on average; the budget bounds them by
  1 + ratio in an outage.
- The wait before attempt n + 1 is the backoff's n-th. ``Retry-After`` is a minimum, plus
  U(0, spread); a wait that the deadline has no room for ends the call at once.
- A retry is paid for before its wait, and paid back when it is not sent after all.
- The breaker sees every attempt, and a first attempt that passed it credits the budget.

Source: gRPC A6 and Finagle for the budget, RFC 9110 section 10.2.3 for ``Retry-After``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic

from idempotency.client import retry_after
from idempotency.client.breaker import Admission, BreakerOpen, Outcome
from idempotency.client.budget import Ticket
from idempotency.client.classification import (
    SAFE_METHODS,
    Answer,
    Decision,
    Problem,
    Trouble,
    Verdict,
)
from idempotency.client.deadline import HEADER as DEADLINE_HEADER
from idempotency.client.deadline import Deadline, DeadlineExceeded
from idempotency.client.history import Attempt, CallResult, Gate, Spending, Stop, attach
from idempotency.client.messages import MARKER, AnyResponse, Request, find_key, lowered, new_key
from idempotency.client.observers import tell
from idempotency.client.policy import Gear
from idempotency.core.keys import HEADER as KEY_HEADER

__all__ = ["AttemptLoop", "Done", "Ended", "Send", "Sleep"]

_KEY, _DEADLINE = KEY_HEADER.lower(), DEADLINE_HEADER.lower()

#: Nothing left this process, so a retry that ends like this costs nobody anything. A connection
#: that was refused is not among these: the attempt reached the server's door.
UNSENT = frozenset({Trouble.POOL, Trouble.REFUSED, Trouble.BODY})


#: The wait before the next attempt, or why there is none; and what the budget said to that.
Plan = tuple[float | None, Stop | None, Spending]


def _ended(stop: Stop) -> Plan:
    return None, stop, "not asked"


@dataclass(slots=True)
class Send:
    """Send this, and report with ``ended``."""

    request: Request
    timeout: float
    #: Send a second copy when the first has not ended after so many seconds; None: never.
    hedge_after: float | None = None


@dataclass(slots=True)
class Sleep:
    """Wait, and report with ``slept``."""

    seconds: float


@dataclass(slots=True)
class Done(Generic[AnyResponse]):
    """The call has ended."""

    result: CallResult[AnyResponse]


@dataclass(slots=True)
class Ended(Generic[AnyResponse]):
    """How one copy of a request ended, and what that means."""

    decision: Decision
    response: AnyResponse | None = None
    answer: Answer | None = None
    trouble: Trouble | None = None
    error: Exception | None = None


class AttemptLoop(Generic[AnyResponse]):
    """One call. Its key is made here, once. Not safe for threads, except ``answered`` and
    ``failed``, which change nothing."""

    _number = 1
    _began = 0.0
    _in_flight = _hedged = _copy_unsent = False
    _gate: Gate = "none"
    _waits: Iterator[float] | None = None
    _admission: Admission | None = None
    _ticket: Ticket | None = None
    _copy_ticket: Ticket | None = None

    def __init__(
        self,
        gear: Gear,
        request: Request,
        *,
        key: str | None = None,
        deadline: Deadline | None = None,
    ) -> None:
        """Raises ``KeyInvalid`` for a key that is none."""
        self._gear = gear
        self._method = request.method.upper()
        self._url, self._body = request.url, request.body
        self._headers = lowered(request.headers)
        self.key = find_key(self._headers, key)
        if self.key is None and gear.policy.make_keys and self._method not in SAFE_METHODS:
            self.key = new_key()
        if self.key is not None:
            self._headers[_KEY] = self.key
        self._keyed = self.key is not None and gear.policy.server_dedupes
        self._deadline = deadline or Deadline.after(gear.policy.deadline, clock=gear.clock)
        self._attempt_deadline = self._deadline
        self._history: list[Attempt] = []
        self._last: Ended[AnyResponse] | None = None

    @property
    def blocks(self) -> bool:
        """Whether a step may wait for a network, because breaker or budget are shared."""
        pieces = (self._gear.breaker, self._gear.budget)
        return any(piece is not None and piece.blocks for piece in pieces)

    # --- What the driver reports, and what it is to do then ---------------------------------------

    def begin(self) -> Send | Done[AnyResponse]:
        """The first step."""
        return self._attempt()

    def slept(self) -> Send | Done[AnyResponse]:
        """The wait is over."""
        self._number += 1
        return self._attempt()

    def ended(self, end: Ended[AnyResponse]) -> Sleep | Done[AnyResponse]:
        """The attempt has ended; of two copies, this is the end that counts."""
        self._in_flight = False
        self._last = end
        self._settle(end.decision.health)
        if end.trouble in UNSENT:
            self._refund()
        self._close_books()
        plan = self._plan(end)
        self._record(end, plan)
        wait, _, _ = plan
        return self._finish() if wait is None else Sleep(wait)

    def cancel(self, *, sent: bool = True) -> None:
        """The caller gives up: free what the call holds. Harmless at any time, and twice.

        ``sent``: whether what the last step said to send was sent.
        """
        if not sent:
            self._refund()
        if self._in_flight:
            self._in_flight = False
            self._settle(Outcome.NEUTRAL)
            decision = self._judge(Trouble.CANCELLED)
            self._record(Ended(decision, trouble=Trouble.CANCELLED), _ended(Stop.CANCELLED))
        else:
            self._refund()
        self._close_books()

    # --- Judging, also by the copies of a race, from any thread -----------------------------------

    def answered(self, response: AnyResponse) -> Ended[AnyResponse]:
        """An answer came."""
        status, headers, problem = response.status_code, response.headers, None
        if status >= 400:
            problem = Problem.read(headers.get("content-type"), response.content)
        answer = Answer(status, headers, problem)
        return Ended(self._judge(answer), response, answer)

    def failed(self, trouble: Trouble, error: Exception) -> Ended[AnyResponse]:
        """No answer came."""
        return Ended(self._judge(trouble), trouble=trouble, error=error)

    def learn(self, seconds: float, decision: Decision) -> None:
        """Let the hedging know how long one copy took."""
        if self._gear.hedging is not None:
            self._gear.hedging.learn(seconds, decision)

    def outlast(self, seconds: float) -> None:
        """Let the hedging know that the first copy would have taken longer than so many seconds.

        Without it the window would forget every slow success that a second copy replaced, and the
        delay would shrink, and hedge more, with each hedge.
        """
        if self._gear.hedging is not None:
            self._gear.hedging.latencies.add(seconds)

    # --- The second copy --------------------------------------------------------------------------

    def pay_for_copy(self) -> bool:
        """Whether the budget has room for a second copy. The floor is for retries only."""
        budget = self._gear.budget
        if budget is not None:
            self._copy_ticket = budget.spend(hedge=True)
        self._hedged = budget is None or self._copy_ticket is not None
        return self._hedged

    def copy_unsent(self) -> None:
        """The second copy never left this process: what was paid for it will be paid back."""
        self._hedged, self._copy_unsent = False, True

    def copy(self) -> tuple[Request, float]:
        """The second copy, and its timeout: what is left of the attempt's."""
        return self._request(), self._attempt_deadline.remaining()

    # ----------------------------------------------------------------------------------------------

    def _attempt(self) -> Send | Done[AnyResponse]:
        gear, margin = self._gear, self._gear.policy.margin
        self._hedged = False
        if not self._deadline.allows(3 * margin):
            return self._too_late()
        if gear.breaker is not None:
            try:
                self._admission = gear.breaker.admit()
            except BreakerOpen as refusal:
                return self._refused(refusal)
            self._gate = "probe" if self._admission.probe else "admitted"
        if self._number == 1 and gear.budget is not None:
            gear.budget.credit()
        self._in_flight = True
        self._began = gear.clock()
        self._attempt_deadline = self._deadline.child(
            limit=gear.policy.attempt_timeout, margin=margin
        )
        timeout = self._attempt_deadline.remaining()
        return Send(self._request(), timeout, self._hedge_after(timeout))

    def _request(self) -> Request:
        policy = self._gear.policy
        headers = self._headers.copy()
        headers[MARKER] = f"{self._number}; max={policy.attempts}"
        left = self._attempt_deadline.child(margin=policy.margin).header()
        if left is not None:
            headers[_DEADLINE] = left
        return Request(self._method, self._url, headers, self._body)

    def _hedge_after(self, timeout: float) -> float | None:
        # A probe stands alone: its permit is for one request.
        if self._gear.hedging is None or self._gate == "probe":
            return None
        dedupes = self._gear.policy.server_dedupes
        delay = self._gear.hedging.delay(
            method=self._method, keyed=self._keyed, server_dedupes=dedupes
        )
        return delay if delay is not None and delay < timeout else None

    def _plan(self, end: Ended[AnyResponse]) -> Plan:
        """The wait before the next attempt, or why there is none."""
        policy, budget = self._gear.policy, self._gear.budget
        if end.decision.verdict is not Verdict.RETRY:
            return _ended(Stop.DECIDED)
        if self._number >= policy.attempts:
            return _ended(Stop.ATTEMPTS)
        wait = self._wait(end.answer)
        if not self._deadline.allows(wait + 3 * policy.margin):
            return _ended(Stop.DEADLINE)
        if budget is None:
            return wait, None, "not asked"
        self._ticket = budget.spend()
        if self._ticket is None:
            return None, Stop.BUDGET, "exhausted"
        return wait, None, "granted"

    def _wait(self, answer: Answer | None) -> float:
        gear = self._gear
        if self._waits is None:
            self._waits = gear.policy.backoff.waits(gear.rng)
        wait = next(self._waits)
        if answer is None:
            return wait
        date = answer.header("date")
        asked = retry_after.parse(answer.header("retry-after"), response_date=date, now=gear.wall())
        return retry_after.at_least(wait, asked, spread=gear.policy.spread, rng=gear.rng)

    def _refused(self, refusal: BreakerOpen) -> Done[AnyResponse]:
        self._gate = "refused"
        self._refund()
        end = self.failed(Trouble.REFUSED, refusal)
        self._began = self._gear.clock()
        self._record(end, _ended(Stop.BREAKER))
        # What the last attempt that was sent had to say is worth more than this.
        self._last = self._last or end
        return self._finish()

    def _too_late(self) -> Done[AnyResponse]:
        self._refund()
        error = DeadlineExceeded("no time is left for this call")
        self._last = self._last or self.failed(Trouble.REFUSED, error)
        return self._finish()

    def _judge(self, end: Answer | Trouble) -> Decision:
        return self._gear.classify(end, method=self._method, keyed=self._keyed)

    def _settle(self, outcome: Outcome) -> None:
        if self._admission is not None and self._gear.breaker is not None:
            self._gear.breaker.settle(self._admission, outcome)
            self._admission = None

    def _refund(self) -> None:
        if self._ticket is not None and self._gear.budget is not None:
            self._gear.budget.refund(self._ticket)
            self._ticket = None

    def _close_books(self) -> None:
        """What is not paid back by now stays spent."""
        budget = self._gear.budget
        if self._copy_unsent and self._copy_ticket is not None and budget is not None:
            budget.refund(self._copy_ticket)
        self._ticket = self._copy_ticket = None
        self._copy_unsent = False

    def _record(self, end: Ended[AnyResponse], plan: Plan) -> None:
        gear, (wait, stop, spending) = self._gear, plan
        attempt = Attempt(
            dependency=gear.dependency,
            operation=gear.operation,
            method=self._method,
            number=self._number,
            maximum=gear.policy.attempts,
            verdict=end.decision.verdict,
            reason=end.decision.reason,
            seconds=gear.clock() - self._began,
            status=None if end.answer is None else end.answer.status,
            trouble=end.trouble,
            hedged=self._hedged,
            breaker=self._gate,
            budget=spending,
            wait=wait,
            stop=stop,
        )
        self._history.append(attempt)
        for observer in gear.observers:
            tell(observer, attempt)

    def _finish(self) -> Done[AnyResponse]:
        end, attempts = self._last, tuple(self._history)
        if end is None:
            raise RuntimeError("a call without an attempt cannot end")
        if end.error is not None:
            attach(end.error, attempts, self.key)
        return Done(CallResult(end.response, end.error, end.decision, attempts, self.key))
