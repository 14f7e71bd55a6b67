"""Operators against live owners; `python -m tests.benchmarks.operator_races` plays hundreds."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.benchmarks import operator_races
from tests.plugins.gateway import GatewayProcess

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = int(os.environ.get("OPERATOR_RACES", "4"))


@pytest.mark.parametrize(
    "race", ["settle", "force-fail", "settle beside the job", "approve", "re-send"]
)
def test_an_operator_and_a_live_owner_never_leave_two_truths(
    race: str, bank: GatewayProcess, caplog: pytest.LogCaptureFixture
) -> None:
    from tests.benchmarks.operator_rounds import Stage

    report = operator_races.run(race, Stage.build(bank), ROUNDS)
    assert report.wrong == [], str(report)
    assert report.rounds == ROUNDS


def test_every_race_is_run() -> None:
    marks: Any = test_an_operator_and_a_live_owner_never_leave_two_truths.pytestmark  # type: ignore[attr-defined]
    (played,) = (mark.args[1] for mark in marks if mark.name == "parametrize")
    assert played == list(operator_races.races())
