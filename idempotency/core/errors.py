"""What can go wrong, in the words of the domain. HTTP appears nowhere here: one adapter maps these
to answers.

::

    IdempotencyError
    ├── KeyMissing            the policy requires a key and none came
    ├── KeyInvalid            a key came and cannot be one
    ├── BodyRefused           the body cannot be fingerprinted (duplicate names, NaN, …)
    ├── BodyIncomplete        the client went away in the middle of its body
    ├── LengthRequired        a chunked body whose end nobody announced
    ├── KeyReused             the key belongs to another request
    ├── KeyInUse              the first request still runs
    ├── LeaseLost             someone else owns the key now; this attempt's work was rolled back
    ├── OutcomePending        an outside effect may have happened; recovery will find out
    ├── OutcomeInDoubt        an outside effect may have happened; a person must find out
    ├── CallNotSent           the outside call was certainly not made; nothing happened
    ├── ResponseNotStored     the work happened; its answer was not kept, or cannot be read any more
    ├── BudgetExhausted       too many retries for what the service can bear
    ├── DeadlinePassed        the caller gave the request less time than it needs
    └── StoreUnavailable      the key store does not answer, so nothing was run
"""

from __future__ import annotations

from typing import ClassVar, Literal

Retry = Literal["same_key", "new_key", "never"]


class IdempotencyError(Exception):
    """Base of every error of this package. ``str(error)`` is safe to show to the caller.

    ``code`` is stable and machine-readable; ``retry`` tells a client whether the same key may be
    sent again.
    """

    code: ClassVar[str]
    retry: ClassVar[Retry]
    default_detail: ClassVar[str]

    def __init__(self, detail: str | None = None, *, retry_after: float | None = None) -> None:
        super().__init__(detail or self.default_detail)
        #: Seconds after which another try makes sense; None: as the settings say.
        self.retry_after = retry_after


class KeyMissing(IdempotencyError):
    code = "idempotency_key_missing"
    retry = "new_key"
    default_detail = (
        "This operation needs an Idempotency-Key header. Send a new UUID for each payment."
    )


class KeyInvalid(IdempotencyError):
    code = "idempotency_key_invalid"
    retry = "new_key"
    default_detail = "The idempotency key is malformed. Send 1 to 255 visible ASCII characters."


class BodyRefused(IdempotencyError):
    code = "body_refused"
    retry = "new_key"
    default_detail = (
        "The body is ambiguous, so two copies of it cannot be compared. Send valid JSON."
    )


class BodyIncomplete(IdempotencyError):
    code = "body_incomplete"
    retry = "same_key"
    default_detail = (
        "Less of the body arrived than Content-Length announces, so nothing was run. "
        "Repeat the whole request with the same key."
    )


class LengthRequired(IdempotencyError):
    code = "length_required"
    retry = "same_key"
    default_detail = (
        "Send the body with a Content-Length; a chunked body cannot be compared with a retry."
    )


class KeyReused(IdempotencyError):
    code = "idempotency_key_reused"
    retry = "new_key"
    default_detail = "This key was used for a different request. Send a new key for a new request."


class KeyInUse(IdempotencyError):
    code = "idempotency_key_in_use"
    retry = "same_key"
    default_detail = (
        "The first request with this key is still running. Repeat it with the same key."
    )


class LeaseLost(IdempotencyError):
    code = "idempotency_lease_lost"
    retry = "same_key"
    default_detail = (
        "This attempt lost its lease and its work was rolled back. "
        "Repeat the request with the same key."
    )


class OutcomePending(IdempotencyError):
    code = "outcome_pending"
    retry = "same_key"
    default_detail = (
        "The outcome is not known yet and is being recovered. "
        "Repeat the request with the same key; do not use a new one."
    )


class OutcomeInDoubt(IdempotencyError):
    code = "outcome_in_doubt"
    retry = "never"
    default_detail = (
        "The outcome is in doubt until somebody finds it out. Do not repeat the request."
    )


class CallNotSent(IdempotencyError):
    code = "downstream_unavailable"
    retry = "same_key"
    default_detail = (
        "A service we depend on refused the call. Nothing happened. Repeat with the same key."
    )


class ResponseNotStored(IdempotencyError):
    code = "response_not_stored"
    retry = "never"
    default_detail = (
        "The request succeeded, but its answer was too large to keep, was streamed, or has been "
        "erased since."
    )

    def __init__(self, detail: str | None = None, *, resource: str | None = None) -> None:
        super().__init__(detail)
        #: The Location of the first answer, where it had one.
        self.resource = resource


class BudgetExhausted(IdempotencyError):
    code = "retry_budget_exhausted"
    retry = "same_key"
    default_detail = "Too many retries reach the service now. Wait, then repeat with the same key."


class DeadlinePassed(IdempotencyError):
    code = "deadline_exceeded"
    retry = "same_key"
    default_detail = (
        "The time that the request was given is over, and this attempt did nothing. "
        "Repeat it with the same key and more time."
    )


class ForceFailed(IdempotencyError):
    """Never raised: the answer that an operator stores for every retry (``operators.py``)."""

    code = "force_failed"
    retry: ClassVar[Retry] = "new_key"
    default_detail = (
        "An operator ended this request, and it will not run again. "
        "Send a new key for a new request."
    )


class StoreUnavailable(IdempotencyError):
    code = "idempotency_unavailable"
    retry = "same_key"
    default_detail = (
        "The key store cannot be reached, so nothing was run. Repeat with the same key."
    )


class EndedUnsettled(ForceFailed):
    """The same for an operation whose outside effect may have happened."""

    retry = "never"
    default_detail = (
        "An operator ended this request, and its effect may have happened. Do not repeat it, "
        "not under a new key either, before the operator has settled it with you."
    )


#: Every error, for the catalogue of problem pages and the OpenAPI document.
CATALOGUE: tuple[type[IdempotencyError], ...] = (
    KeyMissing,
    KeyInvalid,
    BodyRefused,
    BodyIncomplete,
    LengthRequired,
    KeyReused,
    KeyInUse,
    LeaseLost,
    OutcomePending,
    OutcomeInDoubt,
    CallNotSent,
    ResponseNotStored,
    BudgetExhausted,
    DeadlinePassed,
    ForceFailed,
    StoreUnavailable,
)
