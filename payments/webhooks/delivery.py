"""One delivery of a message to a merchant's endpoint, and what came of it."""

from __future__ import annotations

import json
import time
from functools import cache
from typing import Any

import httpx2

from idempotency import __version__
from idempotency.client.httpx2_transports import Httpx2Transport
from idempotency.client.messages import Request
from idempotency.client.retry_after import parse
from idempotency.client.transports import NoAnswer
from idempotency.outbox import Dead, Delivered, Ending, Message, Retry
from payments.exceptions import RefusedUrl
from payments.webhooks import conf, endpoints, signatures
from payments.webhooks.addresses import AddressBook, LookUpFailed, check_form

#: Bytes of an answer that are read. Its status is all that counts: a receiver that has said 200
#: and then goes on without end, or breaks off, has the message, and would act on it again.
MAX_ANSWER = 64 * 1024
GONE = 410


class Postman:
    """Posts to URLs that strangers chose. Safe for threads, and to make before a fork.

    It connects to the addresses that it has checked and to no other; it follows no redirect, asks
    no proxy out of the environment, and reads no more than ``MAX_ANSWER``.
    """

    def __init__(self, book: AddressBook | None = None, **options: Any) -> None:
        """``options`` are further ones of ``Httpx2Transport``."""
        book = book or AddressBook()
        # A connection is not kept: each delivery looks the name up, and checks it, anew.
        self._transport = Httpx2Transport(
            resolve=book.addresses,
            max_answer=MAX_ANSWER,
            headers_suffice=True,
            idle=0,
            **options,
        )

    def post(self, url: str, body: str, headers: dict[str, str]) -> httpx2.Response:
        """The answer, whatever its status. Raises `RefusedUrl`, `LookUpFailed` and `NoAnswer`."""
        check_form(url)
        return self._transport.send(Request("POST", url, headers, body.encode()), conf.timeout())


@cache
def postman() -> Postman:
    """The one of this process."""
    return Postman()


def deliver(message: Message) -> Ending:
    """Send a message to where its endpoint is now, signed with the secret it has now."""
    endpoint = endpoints.at(destination=message.destination)
    if endpoint is None or not endpoint.enabled:
        return Dead("The endpoint is switched off.")
    body = body_of(message.payload)
    signed = signatures.sign(body, message_id=str(message.id), secret=endpoint.secret)
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"payments-webhooks/{__version__}",
        **signed,
    }
    try:
        answer = postman().post(endpoint.url, body, headers)
    except RefusedUrl as refusal:
        # Names change, and a mistake in them is mended: so it is tried again, like any failure.
        return Retry(str(refusal))
    except LookUpFailed as error:
        return Retry(f"no address: {error}")
    except NoAnswer as none:
        return Retry(f"no answer: {type(none.error).__name__}")
    if answer.status_code == GONE:
        endpoints.disable(endpoint=endpoint)
    return ending_of(answer)


def body_of(payload: Any) -> str:
    """A message's bytes: the same at every attempt, as they are made of what is stored."""
    return json.dumps(payload, sort_keys=True, separators=(",", ":"))


def ending_of(answer: httpx2.Response) -> Ending:
    """What an answer means for the message."""
    said = f"{answer.status_code} {answer.reason_phrase}".strip()
    if answer.is_success:
        return Delivered(said)
    if answer.status_code == GONE:
        return Dead(f"{said}: the endpoint has been switched off")
    headers = answer.headers
    wait = parse(headers.get("Retry-After"), response_date=headers.get("Date"), now=time.time())
    return Retry(said, wait)
