"""Start the simulated gateway: one line with its URL, then serve until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from payments.gateways.simulator.desk import Control, Desk
from payments.gateways.simulator.events import Events
from payments.gateways.simulator.ledger import Entry, Ledger, LedgerError
from payments.gateways.simulator.server import Server

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    parent = os.getppid()
    options = _options()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if options.die_with_parent:
        _die_with(parent)
    try:
        ledger = Ledger(options.data)
    except LedgerError as error:
        return _refuse(str(error))
    desk = Desk(ledger, Control(dedupe=not options.no_dedupe), _teller(options))
    try:
        server = Server((options.host, options.port), desk)
    except OSError as error:
        ledger.close()
        return _refuse(f"cannot listen on {options.host}:{options.port}: {error.strerror}")
    _serve(server, stop)
    return 0


def _teller(options: argparse.Namespace) -> Callable[[Entry], None]:
    """What is called with each new entry."""
    if options.events_url is None:
        return lambda entry: None
    # Not an option: a command line can be read by anybody on the machine.
    secret = os.environ.get("GATEWAY_WEBHOOK_SECRETS", "").partition(",")[0]
    if not secret:
        raise SystemExit("simulated gateway: --events-url needs GATEWAY_WEBHOOK_SECRETS")
    return Events(options.events_url, secret, wait=options.events_wait).tell


def _serve(server: Server, stop: threading.Event) -> None:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    print(f"Simulated gateway: {server.url}", flush=True)
    stop.wait()
    server.shutdown()
    thread.join()
    server.server_close()
    # A request that still waits ends unanswered, and with the ledger closed it moves nothing.
    server.desk.ledger.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m payments.gateways.simulator", description=__doc__
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 (default) takes a free one")
    parser.add_argument("--data", type=Path, required=True, help="the ledger's file")
    parser.add_argument(
        "--no-dedupe", action="store_true", help="ignore idempotency keys: a hostile gateway"
    )
    parser.add_argument(
        "--events-url",
        help="tell this webhook what happens, signed with the first of GATEWAY_WEBHOOK_SECRETS",
    )
    parser.add_argument(
        "--events-wait", type=float, default=0.5, help="seconds before an event is sent"
    )
    parser.add_argument(
        "--die-with-parent", action="store_true", help="end when the parent ends (Linux)"
    )
    return parser.parse_args()


def _die_with(parent: int) -> None:
    """Have the kernel send SIGTERM when the parent (strictly: the thread that started us) ends."""
    if sys.platform != "linux":
        raise SystemExit("simulated gateway: --die-with-parent needs Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before the kernel was told
        raise SystemExit(0)


def _refuse(reason: str) -> int:
    print(f"simulated gateway: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
