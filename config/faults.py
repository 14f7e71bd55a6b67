"""Faults on demand, for `make demo` and the acceptance tests: a request says where it breaks.

    X-Demo-Fault: kill@called       SIGKILL of the very process that serves the request
    X-Demo-Fault: pause@work=FILE   wait until FILE exists, PAUSE seconds at most
    X-Demo-Fault: commit            an unbalanced ledger entry, so that COMMIT is refused
    X-Demo-Fault: drop              all is done, and the connection is cut before the answer

A request passes these points, in this order; a transfer only the first, second and last:

    claimed     the claim is committed and the work has not begun
    work        inside the transaction of the work, or of an operation's first step
    prepared    an operation's intent is committed and the gateway has not been asked
    called      the gateway has answered and nothing of that is saved
    finalize    inside the transaction that saves it
    committed   work and answer are committed and the caller has not heard

The library knows nothing of this: its signals and Django's are enough. Only DEMO_FAULTS puts the
middleware in place, and with it the receivers. A retry that leaves the header out is left alone.
"""

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

from idempotency import signals
from payments.models import Charge, LedgerAccount, LedgerEntry, LedgerTransaction

HEADER = "X-Demo-Fault"
#: Seconds. Below the time after which PostgreSQL ends a session that is idle in a transaction.
PAUSE = 45.0

_FORM = re.compile(
    r"(?P<action>kill|pause)@(?P<point>claimed|work|prepared|called|finalize|committed)"
    r"(=(?P<gate>.+))?|(?P<whole>commit|drop)"
)


@dataclass
class _Fault:
    """What is to happen to the request in progress, and how far that is."""

    action: str
    point: str = ""
    gate: str = ""
    called: bool = False

    def arrive(self, point: str) -> None:
        if point != self.point:
            return
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._wait_at_the_gate()

    def _wait_at_the_gate(self) -> None:
        deadline = time.monotonic() + PAUSE
        while not Path(self.gate).exists() and time.monotonic() < deadline:
            time.sleep(0.02)


_fault: ContextVar[_Fault | None] = ContextVar("fault", default=None)


def middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Keep the fault that a request asks for while it runs."""

    def run(request: HttpRequest) -> Any:
        asked = request.headers.get(HEADER)
        if asked is None:
            return get_response(request)
        fault = _parse(asked)
        if fault is None:
            return _refuse(asked)
        token = _fault.set(fault)
        try:
            answer = get_response(request)
        finally:
            _fault.reset(token)
        if fault.action == "drop":
            _cut(request)
        return answer

    return run


def _parse(text: str) -> _Fault | None:
    match = _FORM.fullmatch(text)
    if match is None or (match["action"] == "pause") != bool(match["gate"]):
        return None
    if match["whole"]:
        return _Fault(match["whole"])
    return _Fault(match["action"], match["point"], match["gate"] or "")


def _refuse(asked: str) -> HttpResponse:
    # A misspelt fault must not pass for a request that survived it.
    return HttpResponseBadRequest(f"{HEADER}: {asked!r} is no fault.\n", "text/plain")


def _cut(request: HttpRequest) -> None:
    # gunicorn's own; what it writes then goes nowhere, as with a client that hung up.
    connection: socket.socket = request.META["gunicorn.socket"]
    connection.shutdown(socket.SHUT_RDWR)


def _arrive(point: str) -> None:
    if fault := _fault.get():
        fault.arrive(point)


@receiver(signals.key_claimed)
def _claimed(**_: Any) -> None:
    _arrive("claimed")


@receiver(signals.operation_prepared)
def _prepared(**_: Any) -> None:
    _arrive("prepared")


@receiver(signals.operation_called)
def _called(**_: Any) -> None:
    if fault := _fault.get():
        fault.called = True
    _arrive("called")


@receiver(signals.key_completed)
def _committed(**_: Any) -> None:
    _arrive("committed")


@receiver(post_save, sender=Charge)
@receiver(post_save, sender=LedgerTransaction)
def _written(instance: Charge | LedgerTransaction, created: bool, **_: Any) -> None:
    fault = _fault.get()
    if fault is None or not created:
        return
    if fault.action == "commit" and isinstance(instance, LedgerTransaction):
        _unbalance(instance)
    fault.arrive("finalize" if fault.called else "work")


def _unbalance(transaction: LedgerTransaction) -> None:
    """Credit somebody with one minor unit that nobody pays; the check runs at COMMIT."""
    movement = transaction.charge or transaction.refund or transaction.transfer
    assert movement is not None  # noqa: S101  no request writes a funding transaction
    account, _ = LedgerAccount.objects.get_or_create(
        kind=LedgerAccount.Kind.FUNDING, merchant=None, currency=movement.currency
    )
    LedgerEntry.objects.create(transaction=transaction, account=account, amount=1)
