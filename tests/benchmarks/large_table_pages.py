"""Asks for each page of the admin, and looks at the plan of every statement it needed."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.contrib.auth.models import User
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from idempotency.core.keys import Scope, log_digest
from idempotency.models import IdempotencyKey, OutboxMessage
from tests.benchmarks import large_table_seed

#: Seconds.
SLOW = 1.0
#: Rows that one statement may visit: a step of a walk (stores/walks.py), which stops in time.
MOST_ROWS = 100_000
ADMIN = "/admin/idempotency"
KEYS, EVENTS, OUTBOX = f"{ADMIN}/idempotencykey/", f"{ADMIN}/keyevent/", f"{ADMIN}/outboxmessage/"


@dataclass
class Page:
    """A page, how long it took, and what its statements visited."""

    name: str
    path: str
    #: How many rows the list should show; None: some.
    rows: int | None = None
    seconds: float = 0.0
    statements: list[Statement] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def line(self) -> str:
        visited = max((statement.visited for statement in self.statements), default=0)
        return (
            f"{self.name:<46} {self.seconds * 1000:6.0f} ms  {len(self.statements):3} statements  "
            f"at most {visited:>9,} rows  {'; '.join(self.problems)}"
        )


@dataclass
class Statement:
    """One statement of a page, as it is run again for its plan."""

    sql: str
    plan: list[str]
    #: Rows that its most expensive node read, kept or not.
    visited: int


def measure(*, show_plans: bool) -> int:
    """Print a line a page. Returns the exit code."""
    client = Client()
    client.force_login(
        User.objects.get_or_create(username="bench", is_superuser=True, is_staff=True)[0]
    )
    pages = list(_pages())
    for page in pages:
        _ask(client, page)
        print(page.line, flush=True)
        for statement in page.statements if show_plans or page.problems else ():
            print("   ", " ".join(statement.sql.split())[:300])
            print("\n".join(f"      {line}" for line in statement.plan))
    failed = [page.name for page in pages if page.problems]
    print(f"{len(pages) - len(failed)} of {len(pages)} pages are quick")
    return 1 if failed else 0


def _pages() -> Iterator[Page]:
    newest = large_table_seed.last()
    yield Page("keys", KEYS, 50)
    yield Page("keys: page from the middle", f"{KEYS}?older={newest // 2}", 50)
    yield Page("keys: page from the end", f"{KEYS}?newer=100", 50)
    for choice in ("stuck", "taken_over", "in_doubt"):
        yield Page(f"keys: {choice}", f"{KEYS}?attention={choice}")
    for state in ("processing", "succeeded", "failed", "in_doubt"):
        yield Page(f"keys: state {state}", f"{KEYS}?state__exact={state}")
    for route in ("POST /v1/charges", "POST /v1/payouts", "POST /nowhere"):
        query = urlencode({"route": route})
        rows = 0 if "nowhere" in route else 50
        yield Page(f"keys: route {route}", f"{KEYS}?{query}", rows)
    query = urlencode({"route": "POST /v1/payouts", "state__exact": "failed"})
    yield Page("keys: route POST /v1/payouts, failed", f"{KEYS}?{query}")
    yield from _searches(newest)
    yield from _others(newest)


def _searches(newest: int) -> Iterator[Page]:
    for age, number in (("new", newest - 1000), ("old", 77), ("middle-aged", newest // 2)):
        tenant, key = large_table_seed.key_of(number)
        yield Page(f"search: {age} key", _search(key), 1)
        yield Page(f"search: account and {age} key", _search(f"{tenant} {key}"), 1)
        digest = bytes(IdempotencyKey.objects.get(pk=number).digest)
        yield Page(f"search: digest of the {age} key", _search(log_digest(digest)), 1)
    yield Page("search: key that is not there", _search("no-such-key"), 0)
    yield Page("search: account and key that is not there", _search("acct_1 none"), 0)
    nowhere = log_digest(Scope("POST /x", "nobody", "nothing").digest)
    yield Page("search: digest that is not there", _search(nowhere), 0)


def _others(newest: int) -> Iterator[Page]:
    for name, number in (("new", newest), ("old", 77)):
        yield Page(f"detail of a {name} key", f"{KEYS}{number}/change/")
    yield Page("force-fail", f"{KEYS}force-fail/?key={newest}")
    yield Page("events", EVENTS, 50)
    yield Page("events of one key", f"{EVENTS}?key_id={newest // 2}")
    yield Page("events: in doubt", f"{EVENTS}?kind=in_doubt")
    yield Page("outbox", OUTBOX, 50)
    for state in ("pending", "dead", "delivered"):
        yield Page(f"outbox: {state}", f"{OUTBOX}?state__exact={state}")
    message = OutboxMessage.objects.order_by("-pk")[0]
    yield Page("outbox: one message", f"{OUTBOX}{message.pk}/change/")
    yield Page("outbox: search by message id", f"{OUTBOX}?q={message.message_id}", 1)
    yield Page("queue of doubts", f"{ADMIN}/doubt/")
    yield Page("operations", f"{ADMIN}/operations/")
    yield Page("index", "/admin/")


def _search(term: str) -> str:
    return f"{KEYS}?{urlencode({'q': term})}"


def _ask(client: Client, page: Page) -> None:
    """Once to warm up, three times for the median of the times, once for the statements."""
    client.get(page.path)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        answer = client.get(page.path)
        times.append(time.perf_counter() - began)
    page.seconds = statistics.median(times)
    if answer.status_code != 200:
        page.problems.append(f"answered {answer.status_code}")
        return
    if page.seconds >= SLOW:
        page.problems.append("too slow")
    if page.rows is not None and len(answer.context["cl"].result_list) != page.rows:
        page.problems.append(f"shows {len(answer.context['cl'].result_list)} rows")
    with CaptureQueriesContext(connection) as captured:
        client.get(page.path)
    page.statements = [
        _explain(query["sql"]) for query in captured if "idempotency_" in query["sql"]
    ]
    if any(one.visited > MOST_ROWS for one in page.statements):
        page.problems.append("visits too many rows")


def _explain(sql: str) -> Statement:
    if sql.startswith("EXPLAIN"):
        return Statement(sql, ["is an EXPLAIN itself"], 0)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = '20s'")
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
            found = cursor.fetchone()[0]
    except OperationalError:
        return Statement(sql, ["is given up"], 0)
    root = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return Statement(sql, list(_lines(root)), max(_visited(node) for node in _nodes(root)))


def _nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _nodes(child)


def _visited(node: dict[str, Any]) -> int:
    """What a scan read in all its loops."""
    if "Relation Name" not in node and "Index Name" not in node:
        return 0
    removed = sum(node.get(f"Rows Removed by {what}", 0) for what in ("Filter", "Index Recheck"))
    return round((node["Actual Rows"] + removed) * node["Actual Loops"])


def _lines(node: dict[str, Any], depth: int = 0) -> Iterator[str]:
    what = " ".join(
        str(node[name]) for name in ("Node Type", "Index Name", "Relation Name") if name in node
    )
    rows, loops = node["Actual Rows"], node["Actual Loops"]
    yield f"{'  ' * depth}{what}: {rows} rows, {loops} loops, visited {_visited(node)}"
    for child in node.get("Plans", ()):
        yield from _lines(child, depth + 1)
