"""How a request ends when it does not end with the answer it asked for.

Ending
├── Problem       an error answer
└── AnswerLost    no answer at all: the connection is dropped without a byte
"""

from __future__ import annotations

from typing import Any


class Ending(Exception):
    """The request ends here, in another way than with its answer."""


class AnswerLost(Ending):
    """The connection is dropped; whatever happened to the money stays so."""


class Problem(Ending):
    """An error answer. ``processed`` None means that the gateway does not say."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        processed: bool | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.processed = processed
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.processed is not None:
            error["processed"] = self.processed
        return {"error": error}

    def headers(self) -> dict[str, str]:
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


def invalid(message: str) -> Problem:
    return Problem(400, "invalid_request", message, processed=False)


def unavailable() -> Problem:
    return Problem(503, "unavailable", "The gateway is down; nothing was charged.", processed=False)
