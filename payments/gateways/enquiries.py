"""Questions to a gateway over HTTP, none of which moves money: what became of a call, and what
moved in a time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

import httpx2

from idempotency.client import BulkheadFull
from idempotency.client.caller import Caller
from idempotency.client.messages import Request
from idempotency.http.deadlines import current_deadline
from idempotency.operations import Done, NotSent, Outcome, Refused, Unknown
from idempotency.propagation import outgoing_headers
from payments.gateways.base import Movement, MovementsUnknown
from payments.gateways.room import Room

#: Movements asked for at once.
PAGE = 500

Entry = dict[str, Any]


class _NoAnswer(Exception):
    """What came is no list; the message says what it was."""


class Enquiries:
    """The questions. Each is bounded in time as a call is, and takes a place in the room."""

    def __init__(self, url: str, caller: Caller[httpx2.Response], room: Room) -> None:
        self._url, self._caller, self._room = url, caller, room

    def find(self, path: str, *, reference: str, key: str) -> Outcome:
        """What the gateway's books have under the reference or the key."""
        asked = {"reference": reference} | ({"key": key} if key else {})
        try:
            with self._room.hold(reference):
                entries = self._ask(path, asked)
        except BulkheadFull:
            return Unknown("too many calls of the gateway are under way")
        except _NoAnswer as none:
            return Unknown(str(none))
        if not all(_is_asked_for(entry, reference, key) for entry in entries):
            # A gateway that does not know the parameter lists everybody's.
            return Unknown("the gateway's answer is about other calls as well")
        return _verdict(entries)

    def movements(self, since: datetime, until: datetime) -> Iterator[Movement]:
        """See ``Gateway.movements``."""
        window = {"since": since.isoformat(), "until": until.isoformat(), "limit": str(PAGE)}
        after = ""
        while True:
            try:
                page = [_movement(entry) for entry in self._ask("/ledger", window | _past(after))]
            except _NoAnswer as none:
                raise MovementsUnknown(str(none)) from none
            yield from page
            if len(page) < PAGE:
                return
            if page[-1].id == after:
                raise MovementsUnknown("the gateway does not turn the page")
            after = page[-1].id

    def _ask(self, path: str, query: dict[str, str]) -> list[Entry]:
        url = f"{self._url}{path}?{urlencode(query)}"
        request = Request("GET", url, {"Accept": "application/json", **outgoing_headers()})
        result = self._caller.perform(request, operation="enquiry", deadline=current_deadline())
        if result.response is None:
            raise _NoAnswer(f"no answer from the gateway ({type(result.error).__name__})")
        status, content = result.response.status_code, result.response.content
        entries = _list_of_objects(content) if status == 200 else None
        if entries is None:
            raise _NoAnswer(f"the gateway answered {status}, which is no list")
        return entries


def _past(after: str) -> dict[str, str]:
    return {"after": after} if after else {}


def _list_of_objects(content: bytes) -> list[Entry] | None:
    try:
        entries = json.loads(content)
    except (ValueError, RecursionError):
        return None
    objects = isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    return entries if objects else None


def _is_asked_for(entry: Entry, reference: str, key: str) -> bool:
    if entry.get("reference") == reference:
        return True
    return bool(key) and entry.get("idempotency_key") == key


def _verdict(entries: list[Entry]) -> Outcome:
    """The first that moved money decides, then one that is not done, then a refusal."""
    if moved := [entry for entry in entries if entry.get("status") == "succeeded"]:
        whole = isinstance(moved[0].get("id"), str)
        return Done(moved[0]) if whole else Unknown("the gateway's record has no id")
    if [entry for entry in entries if entry.get("status") != "declined"]:
        return Unknown("the gateway has it, and is not done with it")
    if entries:
        message = "The gateway has it as declined."
        return Refused({"status": 402, "code": "card_declined", "message": message})
    return NotSent("the gateway's books do not have it")


def _movement(entry: Entry) -> Movement:
    try:
        return Movement(
            kind=entry["kind"],
            id=entry["id"],
            amount=entry["amount"],
            currency=entry["currency"],
            reference=entry["reference"] or "",
            key=entry["idempotency_key"] or "",
            at=datetime.fromisoformat(entry["created"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _NoAnswer(f"a movement of the gateway cannot be read ({error!r})") from error
