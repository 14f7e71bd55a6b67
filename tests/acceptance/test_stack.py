"""`make run` as a user meets it: real processes, real signals."""

import contextlib
import itertools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from config import embedded
from tests.acceptance.product import open_files

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.stack,
    pytest.mark.postgresql,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]


_numbers = itertools.count()


class Run:
    """One run of the stack on `data`, and what it has printed."""

    def __init__(self, data: Path, *, wrapped: bool = False, **env: str) -> None:
        self.data = data
        data.mkdir(exist_ok=True)
        self.printed = data.with_name(f"{data.name}.{next(_numbers)}.out")
        left_out = {"DATABASE_URL", "REDIS_URL", "GATEWAY_URL", "SECRET_KEY", "MAKELEVEL"}
        left_out |= {"ALLOWED_HOSTS", "LOG_FORMAT"}
        inherited = {name: value for name, value in os.environ.items() if name not in left_out}
        port = str(embedded.free_port())
        command = [sys.executable, "-m", "config.stack"]
        if wrapped:  # in a parent that can be killed, as make can be
            command = ["sh", "-c", '"$@"; exit $?', "sh", *command]
        with self.printed.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=inherited | {"STACK_DATA": str(data), "PORT": port} | env,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.printed.read_text()

    def wait_until_ready(self) -> None:
        wait_until(lambda: "curl -i" in self.text() or self.process.poll() is not None, 90)
        assert self.process.poll() is None, self.text()

    def curl(self) -> str:
        (line,) = re.findall(r"^curl .*$", self.text(), re.MULTILINE)
        return str(line)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.data / "stack.json").read_text())
        return state

    def processes(self) -> list[int]:
        """Everything that has this run's data folder in its environment, or works in it: the
        servers write their titles over their environment."""
        mark = f"STACK_DATA={self.data}".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                marked = mark in (process / "environ").read_bytes().split(b"\0")
                if marked or (process / "cwd").readlink().is_relative_to(self.data):
                    found.append(int(process.name))
        return found

    def end(self, signum: signal.Signals) -> int:
        self.process.send_signal(signum)
        return self.process.wait(60)


def wait_until(condition: Callable[[], object], seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def paste(line: str) -> tuple[int, bytes, str | None]:
    """Send what the line of curl sends: status, body, replay marker."""
    _, _, url, *options = shlex.split(line)
    pairs = list(zip(options[::2], options[1::2], strict=True))
    headers = dict(value.split(": ", 1) for option, value in pairs if option == "-H")
    (body,) = [value for option, value in pairs if option == "-d"]
    request = urllib.request.Request(url, body.encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read(), answer.headers["Idempotent-Replayed"]


def get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as answer:
        body: bytes = answer.read()
        return body


def answers(url: str) -> bool:
    try:
        get(url)
    except OSError:
        return False
    return True


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Start stacks; whatever is left of them at the end of the test is killed."""
    runs: list[Run] = []

    def start(name: str = "data", **options: Any) -> Run:
        runs.append(Run(tmp_path / name, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.process.kill()
        run.process.wait()
        for pid in run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    run = Run(tmp_path_factory.mktemp("stack") / "data")
    try:
        run.wait_until_ready()
        yield run
    finally:
        run.end(signal.SIGTERM)


def test_the_printed_line_charges_and_pasted_again_replays(stack: Run) -> None:
    status, body, marker = paste(stack.curl())
    assert (status, marker) == (201, None)
    assert paste(stack.curl()) == (201, body, "true")


def test_it_prints_what_one_needs(stack: Run) -> None:
    text = stack.text()
    assert re.search(r"^Ready: http://127\.0\.0\.1:\d+$", text, re.MULTILINE)
    assert re.search(r"gateway.*http://127\.0\.0\.1:\d+", text, re.IGNORECASE)
    assert re.search(r"in \d+\.\d s", text)
    for word in ("sk_test_acme", "sk_test_globex", "admin/admin"):
        assert word in text
    accounts = {merchant["account"] for merchant in stack.state()["merchants"]}
    assert set(re.findall(r"acct_\w+", text)) == accounts
    assert len(accounts) == 2


def test_its_gateway_its_api_page_and_its_admin_answer(stack: Run) -> None:
    url = stack.state()["url"]
    assert isinstance(json.loads(get(stack.state()["gateway"] + "/ledger")), list)
    assert b"swagger" in get(f"{url}/api/docs/").lower()
    assert b"csrfmiddlewaretoken" in get(f"{url}/admin/login/")


def test_its_lab_answers_with_every_step_ready(stack: Run) -> None:
    (lab,) = re.findall(r"^  Lab: +(\S+)", stack.text(), re.MULTILINE)
    page = get(lab)
    assert page.count(b"data-step=") == 7
    assert b" disabled>" not in page


def test_its_gateway_tells_the_product_what_happened(stack: Run) -> None:
    paste(stack.curl())
    query = "SELECT state FROM idempotency_outboxmessage WHERE channel = 'gateway-events'"
    with psycopg.connect(stack.state()["environment"]["DATABASE_URL"], autocommit=True) as database:
        wait_until(lambda: database.execute(query).fetchall() == [("delivered",)])


def test_static_files_are_served_without_a_step_of_their_own(stack: Run) -> None:
    assert b"{" in get(stack.state()["url"] + "/static/admin/css/base.css")


def test_only_its_owner_may_read_the_secrets_it_writes(stack: Run) -> None:
    for name in ("stack.json", "secret_key"):
        assert (stack.data / name).stat().st_mode & 0o077 == 0


def test_everything_listens_on_loopback_only(stack: Run) -> None:
    inodes = set().union(*map(open_files, stack.processes()))
    listening = 0
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                assert fields[1].startswith("0100007F:"), line
                listening += 1
    assert listening >= 3  # web, gateway, Valkey


def test_manage_py_finds_the_running_stack(stack: Run) -> None:
    names = ("DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DEBUG", "HTTPS", "ALLOWED_HOSTS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "manage.py", "showmigrations", "--plan"]
    env["STACK_DATA"] = str(stack.data)
    printed = subprocess.check_output(command, cwd=ROOT, env=env, text=True)
    assert "[X]  idempotency.0001" in printed


def test_a_second_stack_on_its_folder_is_refused(stack: Run) -> None:
    second = Run(stack.data)
    assert second.process.wait(30) == 1
    (line,) = second.text().splitlines()
    assert "already running" in line
    assert answers(stack.state()["url"] + "/healthz")


def test_no_log_of_any_process_holds_the_key_or_the_api_key(stack: Run) -> None:
    paste(stack.curl())
    (key,) = re.findall(r"try-[0-9a-f]+", stack.curl())
    logs = sorted((stack.data / "logs").iterdir())
    assert {log.stem for log in logs} >= {"web", "celery", "beat", "gateway", "postgres", "valkey"}
    for log in logs:
        written = log.read_text(errors="replace")
        assert key not in written
        assert "sk_test_acme" not in written, log


@pytest.mark.parametrize("name", ["web", "celery", "beat", "gateway"])
def test_a_service_that_dies_is_started_again(stack: Run, name: str) -> None:
    old = stack.state()["pids"][name]
    os.kill(old, signal.SIGKILL)
    wait_until(lambda: stack.state()["pids"][name] != old)
    assert f"{name} died (SIGKILL)" in stack.text()
    wait_until(lambda: answers(stack.state()["url"] + "/healthz"))
    wait_until(lambda: answers(stack.state()["gateway"] + "/ledger"))
    assert old not in stack.processes()


@pytest.mark.parametrize(
    ("name", "crash"), [("Valkey", signal.SIGKILL), ("PostgreSQL", signal.SIGQUIT)]
)
def test_a_server_that_dies_is_started_again_with_its_data(
    stack: Run, name: str, crash: signal.Signals
) -> None:
    charged = paste(stack.curl())
    old = stack.state()["servers"][name]
    os.kill(old, crash)
    wait_until(lambda: stack.state()["servers"][name] != old)
    assert f"{name} died; starting it again" in stack.text()
    wait_until(lambda: answers(stack.state()["url"] + "/readyz"))
    assert paste(stack.curl()) == (201, charged[1], "true")


def test_ctrl_c_stops_everything_and_the_next_run_has_its_data_and_keeps_its_log(
    start: Callable[..., Run],
) -> None:
    port = str(embedded.free_port())
    first = start(PORT=port)
    first.wait_until_ready()
    _, body, _ = paste(first.curl())
    assert first.end(signal.SIGINT) == 0
    assert first.processes() == []
    assert not (first.data / "stack.json").exists()
    written = (first.data / "logs/web.log").read_text()

    second = start(PORT=port)
    second.wait_until_ready()
    assert second.curl() != first.curl()
    assert paste(first.curl()) == (201, body, "true")
    assert (second.data / "logs/web.previous.log").read_text() == written
    assert second.end(signal.SIGTERM) == 0
    assert second.processes() == []


def test_nothing_survives_the_death_of_the_parent(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_until_ready()
    assert len(run.processes()) > 6
    assert run.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: run.processes() == [])


def test_nothing_survives_the_death_of_make(start: Callable[..., Run]) -> None:
    run = start(wrapped=True, MAKELEVEL="1")
    run.wait_until_ready()
    run.end(signal.SIGKILL)
    wait_until(lambda: run.processes() == [])


def test_sigterm_during_the_start_stops_what_had_started(start: Callable[..., Run]) -> None:
    run = start()
    wait_until(lambda: "Starting Valkey" in run.text())
    assert run.end(signal.SIGTERM) == 0
    # What the signal found half started is told by the kernel that its parent has died.
    wait_until(lambda: run.processes() == [])


def test_servers_that_are_given_are_used_and_none_are_started(start: Callable[..., Run]) -> None:
    given = {name: os.environ[name] for name in ("DATABASE_URL", "REDIS_URL")}
    run = start(**given, GATEWAY_URL="http://127.0.0.1:9")
    run.wait_until_ready()
    assert run.state()["environment"].items() >= given.items()
    assert re.search(r"gateway.*http://127\.0\.0\.1:9\b", run.text(), re.IGNORECASE)
    assert set(run.state()["pids"]) == {"web", "celery", "beat"}
    assert not (run.data / "postgres").exists()
    assert run.end(signal.SIGTERM) == 0


def test_a_port_in_use_gets_one_line_that_says_what_to_do(start: Callable[..., Run]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        run = start(PORT=str(taken.getsockname()[1]))
        assert run.process.wait(30) == 1
    (line,) = run.text().splitlines()
    assert "in use" in line
    assert "PORT=" in line


@pytest.mark.parametrize("port", ["0", "http", "65536"])
def test_a_port_that_is_none_gets_one_line(start: Callable[..., Run], port: str) -> None:
    run = start(PORT=port)
    assert run.process.wait(30) == 1
    (line,) = run.text().splitlines()
    assert port in line


def test_a_service_that_cannot_start_says_why(start: Callable[..., Run]) -> None:
    run = start(WEB_WORKERS="none")
    assert run.process.wait(90) == 1
    assert "web did not start" in run.text()
    assert "ValueError" in run.text()
    assert run.processes() == []
