"""The data of one account: handed out, and erased.

No index leads to an account: one more would cost every payment. Both walk the tables, in steps that
hold nobody up, and take minutes where there are millions of rows.

Not found by account: messages of the outbox, which go after ``OUTBOX_RETENTION``, and what
operators wrote about keys that were pruned before they had an answer.
"""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.db import router, transaction
from django.db.models import Exists, OuterRef, QuerySet

from idempotency import encryption
from idempotency.conf import settings
from idempotency.core.responses import RecordedResponse
from idempotency.core.states import SETTLED
from idempotency.encryption import Unreadable
from idempotency.masking import HIDDEN, mask
from idempotency.models import IdempotencyKey, KeyEvent, Proposal, StoredResponse
from idempotency.stores import clock
from idempotency.stores.ranges import answers_by_day, ranges

__all__ = ["Erasure", "OpenKey", "erase", "export"]

logger = logging.getLogger("idempotency")

#: Bodies that are read at once.
BODIES = 20
#: What is handed out of each row, beside its ``record``.
_KEY = (
    "key",
    "route",
    "tenant",
    "state",
    "attempt",
    "operation",
    "recovery_point",
    "failure",
    "created_at",
    "completed_at",
    "expires_at",
)
_EVENT = ("at", "kind", "attempt", "actor", "reason", "data")
_PROPOSAL = ("created_at", "choice", "result", "amount", "reason", "proposed_by", "status")


def export(tenant: str, *, raw: bool = False, using: str | None = None) -> Iterator[dict[str, Any]]:
    """What is stored of an account, object by object, each with its ``type`` (key, event, proposal,
    response) and the ``record`` that it belongs to; JSON by Django's encoder.

    Masked like the admin's pages, unless ``raw``; what is encrypted is opened.
    """
    alias = using or router.db_for_write(IdempotencyKey)
    keys = IdempotencyKey.objects.using(alias)
    for step in ranges(keys):
        for ids in _batches(step.filter(tenant=tenant)):
            yield from _keys(keys.filter(pk__in=ids).order_by("pk"), ids, raw)
    for of_day in answers_by_day(alias):
        for step in ranges(of_day):
            for answer in step.filter(tenant=tenant).iterator(chunk_size=BODIES):
                yield _answer(answer, raw)


@dataclass(frozen=True, slots=True)
class OpenKey:
    """A key that is not settled: what it keeps is needed to end it."""

    record: int
    route: str
    state: str


@dataclass(slots=True)
class Erasure:
    """What was erased, or would be."""

    keys: int = 0
    #: Of the keys, those that a retry would still have been answered for.
    remembered: int = 0
    events: int = 0
    #: With ``bodies_only``: bodies.
    responses: int = 0
    #: Left as they are, and to be settled first.
    open: list[OpenKey] = field(default_factory=list)


def erase(
    tenant: str, *, bodies_only: bool = False, dry_run: bool = False, using: str | None = None
) -> Erasure:
    """Erase what is stored of an account: settled keys, their responses and their story, and the
    responses whose keys were pruned.

    A retry with an erased key runs again, as a new request. ``bodies_only`` keeps the keys, and a
    retry hears ``response_not_stored``. Keys that are open stay, to be settled first. In batches of
    one transaction each: cut short, it can be run again.
    """
    alias = using or router.db_for_write(IdempotencyKey)
    erasure = Erasure()
    for step in ranges(IdempotencyKey.objects.using(alias)):
        _erase_keys(step.filter(tenant=tenant), erasure, keep=bodies_only, dry_run=dry_run)
    for of_day in answers_by_day(alias):
        for step in ranges(of_day):
            answers = step.filter(tenant=tenant)
            if bodies_only:
                _erase_bodies(answers, erasure, dry_run=dry_run)
            else:
                _erase_answers(answers, erasure, dry_run=dry_run)
    if not dry_run:
        logger.warning("erased of account %s: %s", tenant, erasure)
    return erasure


# Erasing

_SETTLED = [state.value for state in SETTLED]


def _erase_keys(
    keys: QuerySet[IdempotencyKey], erasure: Erasure, *, keep: bool, dry_run: bool
) -> None:
    _note_open(keys.exclude(state__in=_SETTLED), erasure)
    for ids in () if keep else _batches(keys.filter(state__in=_SETTLED)):
        with transaction.atomic(using=keys.db):
            settled = keys.filter(pk__in=ids, state__in=_SETTLED)
            # Under lock: a retry of one that failed may be claiming it.
            going = list(settled.select_for_update().values_list("pk", flat=True))
            if going:
                _forget(keys.filter(pk__in=going).order_by(), going, erasure, dry_run=dry_run)
        _note_open(keys.filter(pk__in=set(ids).difference(going)), erasure)


def _forget(
    keys: QuerySet[IdempotencyKey], ids: list[int], erasure: Erasure, *, dry_run: bool
) -> None:
    erasure.remembered += keys.filter(expires_at__gt=clock.now()).count()
    erasure.events += _erase_story(keys.db, ids, dry_run=dry_run)
    erasure.keys += keys.count() if dry_run else keys._raw_delete(keys.db)


def _note_open(keys: QuerySet[IdempotencyKey], erasure: Erasure) -> None:
    found = keys.order_by("pk").values_list("pk", "route", "state")
    erasure.open += [OpenKey(*values) for values in found]


def _erase_answers(answers: QuerySet[StoredResponse], erasure: Erasure, *, dry_run: bool) -> None:
    """Those whose key is gone: erased just now, or pruned before. A key that was completed after
    its turn came is still there, and so is its answer."""
    keys = IdempotencyKey.objects.using(answers.db).filter(pk=OuterRef("key_id"))
    going = answers if dry_run else answers.filter(~Exists(keys))
    for ids in _batches(going):
        with transaction.atomic(using=answers.db):
            gone = answers.filter(pk__in=ids).order_by()
            if dry_run:
                erasure.responses += len(ids)
            else:
                erasure.events += _erase_story(answers.db, ids, dry_run=False)
                erasure.responses += gone._raw_delete(answers.db)


def _erase_bodies(answers: QuerySet[StoredResponse], erasure: Erasure, *, dry_run: bool) -> None:
    for ids in _batches(answers.filter(body__isnull=False)):
        bodies = answers.filter(pk__in=ids).order_by()
        erasure.responses += len(ids) if dry_run else bodies.update(body=None)


def _erase_story(using: str, ids: list[int], *, dry_run: bool) -> int:
    """Events and proposals of these records, and how many they are."""
    lines = 0
    for rows in (KeyEvent.objects.using(using), Proposal.objects.using(using)):
        of_keys = rows.filter(key_id__in=ids)
        lines += of_keys.count() if dry_run else of_keys._raw_delete(using)
    return lines


# Handing out


def _keys(keys: QuerySet[IdempotencyKey], ids: list[int], raw: bool) -> Iterator[dict[str, Any]]:
    events = KeyEvent.objects.using(keys.db).filter(key_id__in=ids).order_by("at", "pk")
    proposals = Proposal.objects.using(keys.db).filter(key_id__in=ids).order_by("pk")
    for key in keys:
        yield _row("key", key.pk, key, _KEY) | {"kept": _masked(_kept(key.context), raw)}
    for event in events:
        row = _row("event", event.key_id, event, _EVENT)
        yield row | {"data": _masked(event.data, raw)}
    for proposal in proposals:
        row = _row("proposal", proposal.key_id, proposal, _PROPOSAL)
        yield row | {"result": _masked(_opened(proposal.result), raw)}


def _row(kind: str, record: int, row: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {"type": kind, "record": record, **{name: getattr(row, name) for name in names}}


def _kept(kept: Any) -> Any:
    """What an operation keeps for its next step, opened."""
    if not isinstance(kept, dict) or "context" not in kept:
        return kept
    try:
        return {**kept, "context": encryption.open_json(kept["context"])}
    except Unreadable as error:
        return {**kept, "context": None, "unreadable": str(error)}


def _opened(value: Any) -> Any:
    """JSON that may be sealed; why it cannot be read, where it cannot."""
    try:
        return encryption.open_json(value)
    except Unreadable as error:
        return {"unreadable": str(error)}


def _masked(value: Any, raw: bool) -> Any:
    return value if raw else json.loads(mask().text(json.dumps(value, cls=DjangoJSONEncoder)))


def _answer(answer: StoredResponse, raw: bool) -> dict[str, Any]:
    headers = tuple((str(name), str(value)) for name, value in answer.headers)
    body = None if answer.body is None else bytes(answer.body)
    given, shown = RecordedResponse(answer.status, headers, body), dict[str, Any]()
    try:
        given = encryption.unseal(given)
    except Unreadable as error:
        given, shown = encryption.bare(given), {"unreadable": str(error)}
    hides = mask().hides
    return {
        "type": "response",
        "record": answer.pk,
        "day": answer.day,
        "status": given.status,
        "headers": [[n, HIDDEN if hides(n) and not raw else value] for n, value in given.headers],
        **(shown or _body(given.body, raw)),
    }


def _body(body: bytes | None, raw: bool) -> dict[str, Any]:
    try:
        text = None if body is None else body.decode()
    except UnicodeDecodeError:
        # What is no text cannot be masked.
        return {"body_base64": base64.b64encode(body or b"").decode() if raw else HIDDEN}
    return {"body": text if text is None or raw else mask().text(text)}


def _batches(rows: QuerySet[Any]) -> Iterator[list[int]]:
    """The primary keys of a step's rows, so many at a time as a job handles at once."""
    ids, size = list(rows.values_list("pk", flat=True)), settings().batch_size
    for start in range(0, len(ids), size):
        yield ids[start : start + size]
