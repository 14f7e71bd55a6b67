"""What happened in a call: its attempts, one by one, and how it ended.

Nothing here holds a key, a body or a URL in its ``repr``: records go to logs and metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Literal, NamedTuple

from idempotency.client.classification import Decision, Trouble, Verdict
from idempotency.client.messages import AnyResponse

__all__ = ["Attempt", "CallResult", "Stop"]

#: What the breaker said: a probe is one of the few calls that a half-open breaker lets through.
Gate = Literal["none", "admitted", "probe", "refused"]
#: What the budget said, when it was asked for another attempt.
Spending = Literal["not asked", "granted", "exhausted"]


class Stop(Enum):
    """Why there was no attempt after this one."""

    #: It succeeded, or what came is final.
    DECIDED = "decided"
    #: As many as the policy allows were made.
    ATTEMPTS = "attempts"
    #: The deadline leaves no time for the wait and another attempt.
    DEADLINE = "deadline"
    #: The retry budget is spent.
    BUDGET = "budget"
    #: The breaker let nothing through.
    BREAKER = "breaker"
    #: The caller took the call back.
    CANCELLED = "cancelled"


class Attempt(NamedTuple):  # one is made for every attempt, so it has to be cheap
    """One attempt and what was decided after it. Times are in seconds, on a monotonic clock."""

    dependency: str
    operation: str
    method: str
    #: 1 for the first.
    number: int
    #: How many the policy allows.
    maximum: int
    verdict: Verdict
    #: In a few words: ``503 retry_budget_exhausted``, ``timeout``.
    reason: str
    seconds: float
    #: None where there was no answer.
    status: int | None
    #: None where there was an answer.
    trouble: Trouble | None
    #: Whether a second copy was sent (``hedging.py``).
    hedged: bool
    breaker: Gate
    budget: Spending
    #: The wait before the next attempt; None where there is none.
    wait: float | None
    #: None where there is a next attempt.
    stop: Stop | None

    def __str__(self) -> str:
        after = f", then a wait of {self.wait:.2f} s" if self.wait is not None else ""
        why = f" ({self.stop.value})" if self.stop not in (None, Stop.DECIDED) else ""
        took = f"{self.reason} after {self.seconds:.2f} s"
        return f"attempt {self.number} of {self.maximum}: {took}{after}{why}"


@dataclass(frozen=True, slots=True)
class CallResult(Generic[AnyResponse]):
    """How a call ended: with the answer to its last attempt, or with an error."""

    response: AnyResponse | None
    #: The original one: what the transport's library raised, ``BreakerOpen``, or
    #: ``DeadlineExceeded`` where no time was left for the first attempt.
    error: Exception | None
    decision: Decision
    attempts: tuple[Attempt, ...]
    #: The idempotency key of every attempt, as it is spelt in the header; None without one.
    key: str | None = field(repr=False)

    @property
    def may_have_arrived(self) -> bool:
        """Whether any attempt may have reached the server and was not answered.

        A connection that was refused speaks for its own attempt only: an earlier one may have done
        the work.
        """
        troubles = (attempt.trouble for attempt in self.attempts)
        return any(trouble is not None and trouble.may_have_arrived for trouble in troubles)

    def unwrap(self) -> AnyResponse:
        """The answer, or the error raised."""
        if self.error is not None:
            raise self.error
        assert self.response is not None  # noqa: S101 - one of the two is there
        return self.response


def attach(error: Exception, attempts: tuple[Attempt, ...], key: str | None) -> None:
    """Put the history on the error: ``error.attempts``, and notes in its traceback.

    ``error.idempotency_key`` is there for whoever wants to repeat the call later; no text shows it.
    """
    error.attempts = attempts  # type: ignore[attr-defined]
    error.idempotency_key = key  # type: ignore[attr-defined]
    for attempt in attempts:
        error.add_note(str(attempt))
