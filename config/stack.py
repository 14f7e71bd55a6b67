"""`make run`: the whole product on one machine, on loopback.

Starts PostgreSQL and Valkey (unless DATABASE_URL and REDIS_URL name others), migrates, seeds,
starts the simulated gateway (unless GATEWAY_URL names one), a Celery worker, beat, and
gunicorn; watches them until Ctrl-C or SIGTERM, and stops them in the opposite order. Data and logs
are in `.data/` (or STACK_DATA); its `stack.json` tells other programs what runs where.

Exit code: 0 after a stop that was asked for, 1 when the stack could not start or go on.
"""

import base64
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path
from types import FrameType

import environ

from config import embedded, tether
from config.embedded import tail
from config.services import GivenUp, Patience, Service

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("STACK_DATA") or ROOT / ".data").absolute()
HOST = "127.0.0.1"
CELERY = [sys.executable, "-m", "celery", "-A", "config", "worker", "-c", "2", "-l", "INFO"]
CELERY += ["--without-gossip", "--without-mingle"]
# By itself: a worker that has beat inside goes on without it when that dies, and nothing recovers.
BEAT = [sys.executable, "-m", "celery", "-A", "config", "beat", "-l", "INFO", "--pidfile="]
BEAT += ["-s", str(DATA / "beat-schedule")]
WEB = [sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py", "config.wsgi"]
GATEWAY = [sys.executable, "-m", "payments.gateways.simulator"]
GATEWAY += ["--data", str(DATA / "gateway.sqlite3")]
READY_SECONDS = 60.0
#: Seconds between two looks at the children.
WATCH = 0.2


class StackError(Exception):
    """The stack cannot start or go on; the text is what to tell the user."""


class StopRequested(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP. Not an Exception: nothing but `main` handles it."""


class Stack:
    """What runs, and what it is told by its environment."""

    def __init__(self, running: contextlib.ExitStack) -> None:
        self._running = running
        self._port = _port()
        self.url = f"http://{HOST}:{self._port}"
        self.env = _environment()
        self.servers: list[embedded.Server] = []
        self._patience: defaultdict[str, Patience] = defaultdict(Patience)
        self.services: list[Service] = []
        #: The merchants and users that seed_demo made.
        self.seeded: dict[str, list[dict[str, str]]] = {}

    def start(self) -> None:
        """Start everything and wait until it answers."""
        self._start_servers()
        self._start_gateway()
        self.seeded = self._prepare()
        self.env.setdefault("PROMETHEUS_MULTIPROC_DIR", str(_empty_folder(DATA / "metrics")))
        self._start_service("web", WEB, grace=15)
        self._wait_until_ready()
        self._start_service("celery", CELERY, grace=10)
        self._start_service("beat", BEAT, grace=5)
        self.write_state()

    def watch(self) -> None:
        """Start again what dies. Returns never: it ends by an exception."""
        while True:
            time.sleep(WATCH)
            for server in self.servers:
                if server.died():
                    self._start_again(server)
            for service in self.services:
                if (code := service.died()) is not None:
                    say(f"{service.name} died ({_describe(code)}); starting it again")
                    service.start_again()
                    self.write_state()

    def _start_again(self, server: embedded.Server) -> None:
        """The product bears the loss of either server; it recovers its data when it starts."""
        say(f"{server.name} died; starting it again")
        self._patience[server.name].demand(server.name, server.log)
        self._patience[server.name].start()
        server.kill()
        server.start()
        self.write_state()

    def write_state(self) -> None:
        """Tell `make demo` and manage.py what runs where. Secret: it holds the credentials."""
        names = ("DATABASE_URL", "REDIS_URL", "GATEWAY_URL", "SECRET_KEY", "DEMO", "HTTPS")
        state = {
            "pid": os.getpid(),
            "url": self.url,
            "gateway": self.env["GATEWAY_URL"],
            **self.seeded,
            "servers": {one.name: one.process.pid for one in self.servers if one.process},
            "pids": {one.name: one.process.pid for one in self.services if one.process},
            "environment": {name: self.env[name] for name in names},
        }
        _write_private(DATA / "stack.json", json.dumps(state, indent=2) + "\n")

    def _start_servers(self) -> None:
        logs = DATA / "logs"
        postgres = embedded.Postgres(DATA / "postgres", log=logs / "postgres.log")
        self._start_server(postgres, "DATABASE_URL")
        valkey = embedded.Valkey(DATA / "valkey", log=logs / "valkey.log")
        self._start_server(valkey, "REDIS_URL")

    def _start_server(self, server: embedded.Server, variable: str) -> None:
        if self.env.get(variable):
            say(f"Using {variable} instead of a {server.name} of its own")
            return
        say(f"Starting {server.name}")
        self._running.enter_context(server)
        self.servers.append(server)
        self.env[variable] = server.url

    def _start_gateway(self) -> None:
        if self.env.get("GATEWAY_URL"):
            return
        port = embedded.free_port(preferred=9000)
        events = ["--events-url", f"{self.url}/v1/gateway-events"]
        self._start_service("gateway", [*GATEWAY, "--port", str(port), *events], grace=5)
        self.env["GATEWAY_URL"] = f"http://{HOST}:{port}"

    def _start_service(self, name: str, command: list[str], grace: float) -> None:
        log = DATA / "logs" / f"{name}.log"
        service = Service(name, command, dict(self.env), log, grace, cwd=ROOT)
        self.services.append(self._running.enter_context(service))

    def _prepare(self) -> dict[str, list[dict[str, str]]]:
        """Bring the database up to date and seed it; return who is in it."""
        log, result = DATA / "logs" / "prepare.log", DATA / "seed.json"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "config.prepare", str(result)]
            process = tether.start(command, log=output, env=self.env, cwd=ROOT)
        try:
            failed = process.wait() != 0
        finally:
            process.kill()
            process.wait()
        if failed:
            raise StackError(f"The database could not be prepared; {log} ends:\n{tail(log)}")
        seeded: dict[str, list[dict[str, str]]] = json.loads(result.read_text())
        return seeded

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not _answers(f"{self.url}/readyz"):
            dead = next((one for one in self.services if one.died() is not None), None)
            if dead or time.monotonic() > deadline:
                failed = dead or self.services[-1]
                end = tail(failed.log)
                raise StackError(f"{failed.name} did not start; {failed.log} ends:\n{end}")
            time.sleep(0.05)


def main() -> int:
    began = float(os.environ.get("STACK_BEGAN") or time.time())
    environ.Env.read_env(ROOT / ".env")
    _stop_on_signals()
    try:
        with contextlib.ExitStack() as running:
            _take_the_folder(running)
            stack = Stack(running)
            stack.start()
            _introduce(stack, time.time() - began)
            stack.watch()
    except StopRequested:
        say("Stopped")
    except (StackError, GivenUp, embedded.CannotStart) as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


def say(line: str) -> None:
    print(line, flush=True)


def _introduce(stack: Stack, seconds: float) -> None:
    key = f"try-{secrets.token_hex(4)}"
    body = '{"amount": 1999, "currency": "EUR", "source": "tok_visa"}'
    say(f"""
Ready: {stack.url}
Started in {seconds:.1f} s. Logs: {DATA / "logs"}. Ctrl-C stops it.

  Gateway: {stack.env["GATEWAY_URL"]}  (its own ledger: /ledger)
  Lab:     {stack.url}/lab/  (break payments by hand, and watch)
  API:     {stack.url}/api/docs/
  Admin:   {stack.url}/admin/

{_accounts(stack)}

A charge, to paste; pasted again it is the same charge. Other sources misbehave on demand:
tok_declined, tok_slow, tok_answer_lost, tok_error_before, tok_error_after, tok_busy, tok_down.

curl -i {stack.url}/v1/charges -H 'Authorization: Bearer sk_test_acme' \
-H 'Idempotency-Key: {key}' -H 'Content-Type: application/json' -d '{body}'
""")


def _accounts(stack: Stack) -> str:
    lines = [
        f"  {one['name'] + ':':<8} {one['account']}, API key {one['api_key']}"
        for one in stack.seeded["merchants"]
    ]
    users = (f"{one['username']}/{one['password']}" for one in stack.seeded["users"])
    return "\n".join([*lines, f"  Users:   {', '.join(users)}"])


def _environment() -> dict[str, str]:
    """This process's environment over the demo's defaults.

    DEBUG stays off, so that what runs is what production runs: its error pages, its handling of a
    lost database, no list of every statement in memory. DEMO gives what DEBUG would be wanted for;
    HTTPS=0 says that no TLS can exist on loopback, and so lets cookies travel without it.
    """
    defaults = {"DEBUG": "0", "DEMO": "1", "DEMO_FAULTS": "1", "HTTPS": "0"}
    # 1,000.00 of most currencies: what is above takes two of the demo's users to settle.
    defaults["FOUR_EYES_ABOVE"] = '{"*": 100000}'
    env = defaults | dict(os.environ)
    env["PORT"] = str(_port())
    env.setdefault("SECRET_KEY", _secret_key())
    # Shared by the gateway and the product, which start and stop together.
    secret = base64.b64encode(secrets.token_bytes(32)).decode()
    env.setdefault("GATEWAY_WEBHOOK_SECRETS", f"whsec_{secret}")
    return env


def _secret_key() -> str:
    """Kept, because keys for the gateway are derived from it: a new one would charge again."""
    path = DATA / "secret_key"
    if not path.exists():
        _write_private(path, secrets.token_urlsafe(50))
    return path.read_text()


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, whole or not at all."""
    draft = path.with_name(path.name + ".new")
    draft.touch(mode=0o600)
    draft.write_text(text)
    draft.rename(path)


def _empty_folder(path: Path) -> Path:
    """What the processes of the run before counted would be counted again."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    return path


def _port() -> int:
    given = os.environ.get("PORT") or "8000"
    if not given.isdecimal() or not 0 < int(given) < 65536:
        raise StackError(f"PORT must be a number from 1 to 65535, not {given!r}.")
    return int(given)


def _take_the_folder(running: contextlib.ExitStack) -> None:
    """Refuse to share the data folder or the port with another stack."""
    (DATA / "logs").mkdir(parents=True, exist_ok=True)
    lock = running.enter_context((DATA / "lock").open("w"))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise StackError(f"A stack is already running on {DATA}: stop it first.") from None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, _port()))
        except OSError as error:
            raise StackError(
                f"Port {_port()} cannot be used ({error.strerror}): stop what listens there, or "
                "choose another with `make run PORT=8001`."
            ) from None
    running.callback((DATA / "stack.json").unlink, missing_ok=True)


def _stop_on_signals() -> None:
    """The first signal unwinds everything; more of them do not disturb that."""
    if "MAKELEVEL" in os.environ:  # make was killed: so is what it started
        tether.tie_to(os.getppid(), signal.SIGTERM)
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def stop(signum: int, frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise StopRequested

    for each in signals:
        signal.signal(each, stop)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else signal.Signals(-code).name


if __name__ == "__main__":
    sys.exit(main())
