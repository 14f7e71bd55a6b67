"""What an operation is made of: its steps, how its call can end, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.core.serializers.json import DjangoJSONEncoder

from idempotency.core.responses import WITHOUT_BODY, RecordedResponse, stored_headers


@dataclass(frozen=True, slots=True)
class Done:
    """The outside effect happened. ``result`` is what finalize needs of the answer."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """The other side said no, for good: a declined card. Nothing happened there and nothing
    will."""

    result: dict[str, Any]


@dataclass(frozen=True, slots=True)
class NotSent:
    """The call certainly had no effect: no connection, or refused before it was looked at."""

    reason: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell from here whether the effect happened."""

    reason: str


Outcome = Done | Refused | NotSent | Unknown


@dataclass(frozen=True, slots=True)
class Amount:
    """How much money an operation is about: ``minor`` units of an ISO 4217 currency."""

    minor: int
    currency: str
    #: As people write it.
    text: str = ""

    def __str__(self) -> str:
        return self.text or f"{self.minor} {self.currency} (minor units)"


@dataclass(frozen=True, slots=True)
class Reply:
    """An operation's answer, always JSON: a job that finishes it has no request to negotiate
    with."""

    status: int
    data: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str = "application/json"

    def record(self) -> RecordedResponse:
        """The answer as bytes, equal whoever makes them."""
        headers = stored_headers(self.headers.items())
        if self.status in WITHOUT_BODY:
            return RecordedResponse(self.status, headers, b"")
        body = json.dumps(self.data, cls=DjangoJSONEncoder, separators=(",", ":")).encode()
        return RecordedResponse(self.status, (("Content-Type", self.content_type), *headers), body)


class Operation:
    """Subclass, give it a ``name`` that never changes, and return an instance from the view's
    handler.

    Keyword arguments given to the constructor are ``self.arguments`` in ``prepare``; the later
    steps run on a fresh instance, so that a first run and a resumed one cannot differ.
    """

    #: Stored with the key, to find the class again: renaming it strands the operations that are
    #: open.
    name: ClassVar[str]
    #: The outside service; part of the downstream key.
    service: ClassVar[str] = ""
    #: Whether the other side answers a repeated downstream key with the first effect. When it does
    #: not, an unknown outcome is in doubt: calling again could charge twice.
    downstream_dedupes: ClassVar[bool] = True
    #: How long it does so, from the first call on; None: for ever. After that an unknown outcome is
    #: looked up, and no longer called again.
    downstream_dedupes_for: ClassVar[timedelta | None] = None

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        name = cls.__dict__.get("name")
        if name is None:
            return
        known = _registry.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            cls.__module__,
            cls.__qualname__,
        ):
            raise ImproperlyConfigured(f"Two operations are named {name!r}: {known} and {cls}.")
        _registry[name] = cls

    def prepare(self, request: Any) -> dict[str, Any] | Reply:
        """Write the intent and return the context, JSON-able; or a Reply, to end here and store
        that.

        Runs in one transaction. What it raises rolls back: a client error releases the key.
        """
        raise NotImplementedError

    def call(self, context: dict[str, Any], key: str) -> Outcome:
        """Make the outside call under ``key``. Must be bounded in time, well below the lease.

        Runs outside any transaction. An exception counts as Unknown.
        """
        raise NotImplementedError

    def look_up(self, context: dict[str, Any], key: str) -> Outcome:
        """Ask the other side what became of the call under ``key``, without making it.

        ``Done`` or ``Refused``, as it was; ``NotSent``: the other side has nothing of it *now*,
        though the call may still be on its way; ``Unknown``: it does not say. Bounded in time and
        outside any transaction, like ``call``. By default nobody can be asked.
        """
        return Unknown(f"{self.name} has no look_up")

    def finalize(self, context: dict[str, Any], outcome: Done | Refused) -> Reply:
        """Write the result and make the answer, in the transaction that completes the key.

        May run again after a crash: write only what is conditional on the intent's state.
        """
        raise NotImplementedError

    def withdraw(self, context: dict[str, Any]) -> None:
        """Undo the intent, because the call was certainly not sent. Runs in one transaction.

        Like ``finalize``, it writes only what is conditional on the intent's state.
        """

    def amount_of(self, context: dict[str, Any]) -> Amount | None:
        """How much money it is about; None: none.

        Above ``FOUR_EYES_ABOVE`` no person ends it alone.
        """
        return None

    def result_by_hand(
        self, context: dict[str, Any], *, done: bool, record: str
    ) -> dict[str, Any] | None:
        """What ``finalize`` needs when a person, and not the other side, says how the call ended.

        ``record`` is what he was told: the other side's id of what it did, or (not ``done``) the
        code that it refused with. None, the default: only the other side's own answer will do.
        """
        return None


_registry: dict[str, type[Operation]] = {}


def find(name: str) -> type[Operation] | None:
    """The operation of that name; None when this process knows none."""
    return _registry.get(name)


def find_known(name: str) -> type[Operation]:
    """The operation of that name. Raises ImproperlyConfigured when this process knows none."""
    operation = find(name)
    if operation is None:
        raise ImproperlyConfigured(
            f"Operation {name!r} is not known to this process. Define it in an `operations` module "
            "of an installed app, under the name it had."
        )
    return operation
