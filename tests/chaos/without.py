"""A copy of the product for the run, and the guards that can be taken from it, each in every road
that has it.

Always on a copy: the processes that are started in the course of a run import the code anew, and
somebody may be editing it. On a copy's fresh database the migrations install changed functions.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutations import copy_repository

_COMPLETE = "idempotency/sql/complete_v1.sql"
_CLAIM = "idempotency/sql/claim_v1.sql"
_ROWS = "idempotency/stores/rows.py"
_DATABASE = "idempotency/stores/database.py"


@dataclass(frozen=True, slots=True)
class Cut:
    """One place of a guard, and what stands there without it."""

    path: str
    guard: str
    instead: str


GUARDS = {
    # The owner is named by no write of an attempt, and one that finds its lease lost goes on.
    "fence": (
        Cut(_COMPLETE, " AND k.owner = p_owner", ""),
        Cut(
            _COMPLETE,
            "        RAISE EXCEPTION 'the lease of idempotency key % is lost', p_id "
            "USING ERRCODE = 'ID001';\n",
            "        RETURN current_date;\n",
        ),
        Cut(
            _ROWS,
            "pk=lease.key_id, owner=lease.owner, state=State.PROCESSING.value",
            "pk=lease.key_id, state=State.PROCESSING.value",
        ),
        Cut(
            _ROWS,
            "        if not self._owned(lease).update(**changes):\n            raise LeaseLost\n",
            "        self._owned(lease).update(**changes)\n",
        ),
    ),
    # A key whose owner is at work is claimed as if nobody were.
    "lease": (
        Cut(
            _CLAIM,
            "IF v_row.state = 'processing' AND v_row.lease_expires_at > v_now THEN",
            "IF false THEN",
        ),
        Cut(
            _DATABASE,
            "if row.state == State.PROCESSING and row.lease_expires_at > row.now:",
            "if False:",
        ),
        Cut(_DATABASE, "                .filter(claimable)\n", ""),
    ),
    # Each attempt at the outside call has a key of its own.
    "downstream-key": (
        Cut(
            "idempotency/kept.py",
            '    step = f"call {prepared}"\n',
            "    step = f\"call {__import__('uuid').uuid4()}\"\n",
        ),
    ),
}


def run_in_copy(without: str | None, arguments: list[str]) -> int:
    """Run it there; the exit code."""
    with tempfile.TemporaryDirectory(prefix="chaos-copy-") as folder:
        copy = Path(folder) / "repository"
        copy_repository(copy)
        for cut in GUARDS[without] if without else ():
            path = copy / cut.path
            text = path.read_text()
            if text.count(cut.guard) != 1:
                raise RuntimeError(f"{cut.guard!r} is not exactly once in {cut.path}")
            path.write_text(text.replace(cut.guard, cut.instead))
        with subprocess.Popen(
            [sys.executable, "-m", "tests.chaos", "--here", *arguments], cwd=copy
        ) as process:
            try:
                return process.wait()
            finally:
                process.terminate()
