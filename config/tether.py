"""Children that do not outlive their parent, not even one that was killed.

This file is also the child's first program: it gives up root where it is told to, asks the kernel
for a signal at the parent's death, and becomes the command. Done before exec in a program of its
own, and not in a `preexec_fn`, because that may deadlock where the parent has threads.

The kernel watches the *thread* that started the child: start children from one that stays. Only
Linux can do this; elsewhere a parent that is killed leaves its children to be ended by hand.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PR_SET_PDEATHSIG = 1
# Loaded here, because whom root becomes may not be able to read Python's own folder.
_libc = ctypes.CDLL(None)


def start(
    command: Sequence[str | Path],
    *,
    log: IO[Any] | int,
    at_parents_death: signal.Signals = signal.SIGTERM,
    user: tuple[int, int] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `command` in a session of its own, so that a Ctrl-C reaches only the parent.

    `user` is a (uid, gid) that root becomes. Output goes to `log`.
    """
    identity = "{}:{}".format(*user) if user else ""
    launcher = [sys.executable, "-I", "-S", __file__]
    launcher += [str(os.getpid()), str(int(at_parents_death)), identity]
    return subprocess.Popen(
        [*launcher, *map(str, command)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        cwd=cwd,
        env=env,
    )


def tie_to(parent: int, signum: int) -> None:
    """Have this process signalled when `parent` dies; exit at once if it already has."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _become(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _main(parent: str, signum: str, identity: str, *command: str) -> None:
    if identity:
        _become(*map(int, identity.split(":")))
    # After the change of user: that clears the wish.
    tie_to(int(parent), int(signum))
    # Python ignores these, and what is ignored stays ignored across exec.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    _main(*sys.argv[1:])
