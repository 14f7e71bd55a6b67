"""The payment sources: each behaves in one way that real gateways do."""

from __future__ import annotations

from dataclasses import dataclass

from payments.gateways.simulator.errors import AnswerLost, Ending, Problem


@dataclass(frozen=True, kw_only=True)
class Source:
    """What charging this source does; the counts are per idempotency key.

    A request without a key is always the first of its kind.
    """

    #: Seconds the charge takes to run.
    seconds: float = 0.0
    #: The card is declined: remembered, but no money moves.
    declines: bool = False
    #: 503 every time; never charges.
    down: bool = False
    #: How many requests are turned away with 429 before one is taken.
    busy: int = 0
    #: How many requests fail with 500 before anything happens.
    errors_before: int = 0
    #: The first request charges, then answers 500.
    error_after: bool = False
    #: The first request charges, then drops the connection.
    answer_lost: bool = False

    def before(self, attempt: int) -> Ending | None:
        """How the given request (1 is the first) ends before the charge; None: it goes on."""
        if attempt <= self.busy:
            message = "Too many requests; nothing was charged."
            return Problem(429, "busy", message, processed=False, retry_after=1)
        if attempt <= self.errors_before:
            return _internal_error()
        return None

    def after(self, attempt: int) -> Ending | None:
        """How the given request ends once its charge is committed; None: with its answer."""
        if attempt > 1:
            return None
        if self.error_after:
            return _internal_error()
        return AnswerLost() if self.answer_lost else None


def _internal_error() -> Problem:
    # The same words whether or not the charge went through: the caller must not be able to tell.
    return Problem(500, "internal_error", "Something went wrong.")


SOURCES = {
    "tok_visa": Source(),
    "tok_declined": Source(declines=True),
    "tok_slow": Source(seconds=3.0),
    "tok_answer_lost": Source(answer_lost=True),
    "tok_error_before": Source(errors_before=2),
    "tok_error_after": Source(error_after=True),
    "tok_busy": Source(busy=2),
    "tok_down": Source(down=True),
}
