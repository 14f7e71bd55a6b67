"""The alerting rules, evaluated: by promtool where it is installed, and by a reading of our own
that knows just enough of PromQL for the rules about how things stand.

Both ask which alerts fire once what was scraped has lasted for a while.
"""

from __future__ import annotations

import operator
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

ROOT = Path(__file__).resolve().parent.parent
RULES = ROOT / "idempotency/observability/alerts.yml"
DASHBOARD = ROOT / "idempotency/observability/grafana.json"
PROMTOOL = shutil.which("promtool")

_METRIC = re.compile(r"\bidempotency_[a-z_]+")
_OVER_TIME = re.compile(r"\w+_over_time\((.+?)\[\w+\]\)")
_FORM = re.compile(
    r"(?P<fold>max|min|avg)(?: by \((?P<by>[\w, ]+)\) )?\(+(?P<metric>\w+)\)+"
    r" (?P<compare>[<>]=?|==) (?P<bound>\d+)"
)
_COMPARE = {">": operator.gt, "<": operator.lt, "==": operator.eq}
_FOLD = {"max": max, "min": min, "avg": lambda values: sum(values) / len(values)}


@dataclass(frozen=True)
class Rule:
    alert: str
    expr: str
    raw: Mapping[str, Any]


def rules() -> list[Rule]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [Rule(one["alert"], one["expr"], one) for group in groups for one in group["rules"]]


def metrics_in(expression: str) -> set[str]:
    return set(_METRIC.findall(expression))


def samples(exposition: str) -> list[Sample]:
    families = text_string_to_metric_families(exposition)
    return [sample for family in families for sample in family.samples]


def firing(scraped: Iterable[Sample]) -> set[str]:
    """Alerts about how things stand, by our own reading. Those about rates are not among them."""
    found = list(scraped)
    return {rule.alert for rule in rules() if _holds(rule.expr, found)}


def is_about_rates(rule: Rule) -> bool:
    return "rate(" in rule.expr or "increase(" in rule.expr


def _holds(expression: str, found: list[Sample]) -> bool:
    if match := re.fullmatch(r"absent\((\w+)\)", expression):
        return all(sample.name != match[1] for sample in found)
    match = _FORM.fullmatch(_OVER_TIME.sub(r"\1", expression))
    if match is None:
        return False
    by = re.split(", *", match["by"]) if match["by"] else []
    groups: dict[tuple[str, ...], list[float]] = {}
    for sample in found:
        if sample.name == match["metric"]:
            group = tuple(sample.labels.get(name, "") for name in by)
            groups.setdefault(group, []).append(sample.value)
    compare, bound = _COMPARE[match["compare"]], float(match["bound"])
    return any(compare(_FOLD[match["fold"]](values), bound) for values in groups.values())


# promtool


def firing_by_promtool(scraped: Iterable[Sample], folder: Path) -> set[str]:
    """The alerts about how things stand that fire once what was scraped has lasted for hours."""
    asked = {name for rule in rules() for name in metrics_in(rule.expr)}
    series = {_spelt(it): f"{it.value}x100" for it in scraped if it.name in asked}
    query = {"expr": 'ALERTS{alertstate="firing"}', "eval_time": "400m", "exp_samples": []}
    test = a_test("as it was scraped", series, [query], interval="4m")
    printed = promtool([test], folder, interval="4m")
    about_rates = {rule.alert for rule in rules() if is_about_rates(rule)}
    return set(re.findall(r'alertname="(\w+)"', printed)) - about_rates


def a_test(
    name: str,
    series: Mapping[str, str],
    queries: list[dict[str, Any]],
    *,
    interval: str = "1m",
) -> dict[str, Any]:
    """One test of promtool's: samples at an interval, and what is asked of them."""
    given = [{"series": spelt, "values": values} for spelt, values in series.items()]
    about = {"name": name, "interval": interval}
    return {**about, "input_series": given, "promql_expr_test": queries}


def promtool(tests: list[dict[str, Any]], folder: Path, *, interval: str = "1m") -> str:
    """Run tests of the rules; what was printed where one failed, else nothing."""
    assert PROMTOOL is not None
    file = folder / "alerts.test.yml"
    rules = {"rule_files": [str(RULES)], "evaluation_interval": interval, "tests": tests}
    file.write_text(yaml.safe_dump(rules))
    done = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True)
    return done.stdout + done.stderr if done.returncode else ""


def _spelt(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
    return f"{sample.name}{{{labels}}}"
