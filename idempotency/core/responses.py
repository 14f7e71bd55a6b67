"""The answer as it is kept: which headers survive, and what a replay gives back."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

logger = logging.getLogger("idempotency")

REPLAY_MARKER = "Idempotent-Replayed"

#: Headers that speak of one exchange and not of the answer: a replay gets fresh ones, or none.
_PER_EXCHANGE = frozenset(
    {
        "set-cookie",
        "date",
        "age",
        "server",
        "server-timing",
        "content-length",
        "retry-after",
        "traceparent",
        "tracestate",
        "x-request-id",
        "x-correlation-id",
        "x-trace-id",
        "x-amzn-trace-id",
        "x-cloud-trace-context",
        "request-id",
        # Hop-by-hop, RFC 9110 section 7.6.1.
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        REPLAY_MARKER.lower(),
    }
)
#: RFC 9110: answers that never have a body, whatever their stream or their data would say.
WITHOUT_BODY = frozenset({204, 205, 304})
#: Names that begin so are ours, between a store and its database: no field name has a colon in it
#: (RFC 9110, section 5.1).
INTERNAL = ":"
_PER_EXCHANGE_PREFIXES = ("ratelimit", "x-ratelimit", "access-control-", INTERNAL)


def stored_headers(headers: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The headers worth keeping, in their order.

    Names listed in ``Connection`` are hop-by-hop too (RFC 9110 section 7.6.1).
    """
    kept: list[tuple[str, str]] = []
    nominated: set[str] = set()
    for name, value in headers:
        lower = name.lower()
        if lower == "connection":
            nominated.update(token.strip().lower() for token in value.split(","))
        elif lower not in _PER_EXCHANGE and not lower.startswith(_PER_EXCHANGE_PREFIXES):
            kept.append((name, value))
    if nominated:
        kept = [(name, value) for name, value in kept if name.lower() not in nominated]
    return tuple(kept)


@dataclass(frozen=True, slots=True)
class RecordedResponse:
    """An answer as the store keeps it. ``body`` None: it was too large or streamed, so it was not
    kept.

    Raises ``ValueError`` for a status that could not be sent again.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes | None

    def __post_init__(self) -> None:
        # Here and not as a rule of the table, which costs the server as much as the row itself.
        if not 100 <= self.status <= 599:
            raise ValueError(f"An answer has a status from 100 to 599, not {self.status}.")

    @property
    def resource(self) -> str | None:
        """The Location of the answer, where it had one."""
        return next((value for name, value in self.headers if name.lower() == "location"), None)

    def within(self, limit: int) -> RecordedResponse:
        """The same, without a body of more than ``limit`` bytes."""
        if self.body is None or len(self.body) <= limit:
            return self
        logger.warning("a response of %s bytes is above %s and not kept", len(self.body), limit)
        return RecordedResponse(self.status, self.headers, None)
