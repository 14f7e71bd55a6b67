"""Dispatchers that are killed at every step; `tests.benchmarks.outbox_crashes` kills hundreds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance.product import Seeded, drop
from tests.benchmarks.outbox_crashes import crash

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

KILLS = int(os.environ.get("OUTBOX_KILLS", "8"))


def test_case_46_killed_dispatchers_lose_nothing_and_each_effect_happens_once_in_its_order(
    seeded: Seeded, tmp_path: Path
) -> None:
    database = seeded.copy()
    try:
        report = crash(database, tmp_path, KILLS)
    finally:
        drop(database)
    assert report.good, str(report)
    assert report.kills.total() >= KILLS
    assert report.arrivals > report.messages  # some were sent twice: it was about something
