"""Each alert fires when it should, and not a step before; and somebody knows what to do."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.samples import Sample

from tests import alert_rules
from tests.alert_rules import DASHBOARD, PROMTOOL, ROOT, Rule, rules

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool on this machine: apt-get install prometheus"
)
RULES = {rule.alert: rule for rule in rules()}


@dataclass(frozen=True)
class Edge:
    """Series that bring an alert about, one sample a minute, and the minute it first fires in."""

    alert: str
    series: dict[str, str]
    minute: int
    labels: str = ""


REQUESTS = 'idempotency_requests_total{route="POST /v1/charges",outcome="%s"}'
CHARGES = 'route="POST /v1/charges"'
GATEWAY = 'dependency="gateway:pay",operation="charge"'

#: Each begins at the bound, where nothing fires, and is above it from the first minute on.
EDGES = [
    Edge(
        "IdempotencyAbandoned",
        {
            'idempotency_keys_abandoned_oldest_seconds{instance="a"}': "120 121x90",
            'idempotency_keys_abandoned_oldest_seconds{instance="b"}': "0x90",
        },
        2,
    ),
    Edge(
        "IdempotencyOutcomeUnknown",
        {"idempotency_keys_suspended_oldest_seconds": "900 901x90"},
        2,
    ),
    Edge("IdempotencyInDoubt", {"idempotency_keys_in_doubt": "0 1x90"}, 2),
    Edge(
        "IdempotencyDependencyFails",
        # Closed, and then open for two thirds of the time: the mean of five minutes is above one
        # from the fourth on.
        {f"idempotency_client_breaker_state{{{GATEWAY}}}": "0 2 2 1 2 2 1 2 2 1 2 2 1 2 2 1"},
        4,
        GATEWAY,
    ),
    Edge(
        "IdempotencyOutboxStuck",
        {
            'idempotency_outbox_due_oldest_seconds{channel="webhooks"}': "120 121x90",
            'idempotency_outbox_due_oldest_seconds{channel="mail"}': "0x90",
        },
        2,
        'channel="webhooks"',
    ),
    Edge("IdempotencyOutboxDead", {"idempotency_outbox_dead": "0 1x90"}, 6),
    Edge("IdempotencyPartitionMissing", {"idempotency_partition_days_ahead": "1 0x90"}, 2),
    Edge("IdempotencyPartitionsLow", {"idempotency_partition_days_ahead": "3 2x90"}, 61),
    Edge("IdempotencyPruningLags", {"idempotency_prune_lag_seconds": "21600 21601x90"}, 31),
    Edge("IdempotencyDaysNotDropped", {"idempotency_partition_droppable_days": "2 3x400"}, 361),
    Edge(
        "IdempotencyDatabaseSilent",
        {
            'idempotency_database_answers{instance="a"}': "1 0x90",
            'idempotency_database_answers{instance="b"}': "1x90",
        },
        2,
    ),
    Edge("IdempotencyMetricsMissing", {"idempotency_database_answers": "1 stale"}, 6),
    Edge(
        "IdempotencyRequestsFail",
        # One in twenty, which is borne, and then one in ten.
        {
            REQUESTS % "executed": "0+19x10 209+18x60",
            REQUESTS % "failed": "0+1x10 12+2x60",
            REQUESTS % "takeover": "0x90",
        },
        16,
        CHARGES,
    ),
    Edge("IdempotencyTakeovers", {REQUESTS % "takeover": "0x15 12x60"}, 21),
    Edge("IdempotencyRetryStorm", {REQUESTS % "over_budget": "0x4 1+1x60"}, 10, CHARGES),
]


@needs_promtool
def test_every_alert_fires_when_it_should_and_not_before(tmp_path: Path) -> None:
    tests = []
    for edge in EDGES:
        severity = RULES[edge.alert].raw["labels"]["severity"]
        labels = f'alertname="{edge.alert}",alertstate="firing",severity="{severity}"'
        fires = [{"labels": f"ALERTS{{{labels}{edge.labels and ',' + edge.labels}}}", "value": 1}]
        query = f'ALERTS{{alertstate="firing",alertname="{edge.alert}"}}'
        asked = [
            {"expr": query, "eval_time": f"{edge.minute - 1}m", "exp_samples": []},
            {"expr": query, "eval_time": f"{edge.minute}m", "exp_samples": fires},
        ]
        tests.append(alert_rules.a_test(edge.alert, edge.series, asked))
    assert alert_rules.promtool(tests, tmp_path) == ""


def test_every_alert_has_its_edge() -> None:
    assert [edge.alert for edge in EDGES] == list(RULES)


@pytest.mark.parametrize(
    "edge",
    [edge for edge in EDGES if not alert_rules.is_about_rates(RULES[edge.alert])],
    ids=lambda edge: edge.alert,
)
def test_our_own_reading_agrees_about_how_things_stand(edge: Edge) -> None:
    assert edge.alert not in alert_rules.firing(_samples(edge, 0))
    assert edge.alert in alert_rules.firing(_samples(edge, 1))


def _samples(edge: Edge, minute: int) -> list[Sample]:
    """What was scraped in a minute. A value like ``1x90`` is the same in all of them."""
    found = []
    for spelt, values in edge.series.items():
        value = values.split()[minute if " " in values else 0].split("x")[0]
        name, _, labels = spelt.partition("{")
        if value != "stale":
            found.append(Sample(name, dict(re.findall(r'(\w+)="(.*?)"', labels)), float(value)))
    return found


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.alert)
def test_every_alert_says_what_is_wrong_and_the_runbook_what_to_do(rule: Rule) -> None:
    assert rule.raw["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch(r"\d+[mh]", rule.raw["for"])
    notes: dict[str, Any] = rule.raw["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    file, _, anchor = notes["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / file).read_text(), re.MULTILINE)
    assert anchor in {heading.lower().replace(" ", "-") for heading in headings}


def test_the_dashboard_is_one() -> None:
    board = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert len(panels) >= 10
    for panel in panels:
        assert panel["title"]
        assert panel["targets"]
        for target in panel["targets"]:
            assert alert_rules.metrics_in(target["expr"]), target
