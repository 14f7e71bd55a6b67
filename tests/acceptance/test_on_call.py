"""The drill of idempotency/README.md: a running product is broken, its metrics bring an alert
about, the action of the runbook is taken, and the alert ends. It says as much as it can meanwhile
(DEBUG lines), and none of that may hold a secret.

What takes minutes in life is brought about by moving times in the database. Each test leaves the
product as it found it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest

from tests import alert_rules
from tests.acceptance.drill import Receiver, Shell, later, open_shell, silence, wait_for_probes
from tests.acceptance.leaks import API_KEYS, Story, leaks
from tests.acceptance.product import Product, new_key, together, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

PRODUCT = {"IDEMPOTENCY_LEASE": "4", "GATEWAY_TIMEOUT": "0.3", "LOG_LEVEL": "DEBUG"}

KEYS = "/admin/idempotency/idempotencykey/"
OVERVIEW = "/admin/idempotency/operations/"
DOUBTS = "/admin/idempotency/doubt/"
OUTBOX = "/admin/idempotency/outboxmessage/"
#: As many as a breaker wants to see before it opens: the retry budget grants few more attempts.
SILENT_CHARGES = 20


@pytest.fixture(scope="module")
def shell(product: Product) -> Iterator[Shell]:
    with open_shell(product) as shell:
        yield shell


@pytest.fixture(scope="module")
def operator(product: Product) -> Iterator[httpx2.Client]:
    """Somebody who is signed in to the admin."""
    with httpx2.Client(base_url=product.url, trust_env=False, follow_redirects=True) as browser:
        form = {"username": "admin", "password": "admin", "next": "/admin/"}
        browser.get("/admin/login/")
        form["csrfmiddlewaretoken"] = browser.cookies["csrftoken"]
        assert browser.post("/admin/login/", data=form).status_code == 200
        yield browser


@pytest.fixture
def alerts(product: Product, tmp_path: Path) -> Callable[[], set[str]]:
    """Which alerts fire once what is scraped now has lasted for a while."""

    def firing() -> set[str]:
        scraped = alert_rules.samples(product.get("/metrics").text)
        found = alert_rules.firing(scraped)
        if alert_rules.PROMTOOL is not None:
            assert alert_rules.firing_by_promtool(scraped, tmp_path) == found
        return found

    return firing


@pytest.fixture
def receiver(product: Product) -> Iterator[Receiver]:
    """One that the merchant has an endpoint for."""
    receiver = Receiver()
    endpoint = {"url": receiver.url}
    path = f"/v1/webhook-endpoints/{new_key('we')}"
    answer = httpx2.put(
        product.url + path, json=endpoint, headers=product.headers(), trust_env=False
    )
    assert answer.status_code == 201, answer.text
    yield receiver
    receiver.close()


def test_nothing_is_wrong_with_a_product_that_works(
    product: Product, alerts: Callable[[], set[str]]
) -> None:
    assert product.charge(new_key()).status_code == 201
    assert alerts() == set()


def charged(product: Product) -> float:
    """Charges that were executed, as they are counted."""
    found = alert_rules.samples(product.get("/metrics").text)
    executed = {"route": "POST /v1/charges", "outcome": "executed"}
    return sum(it.value for it in found if it.name == REQUESTS and it.labels == executed)


REQUESTS = "idempotency_requests_total"


def test_a_worker_that_is_killed_after_the_gateway_charged(
    product: Product, shell: Shell, alerts: Callable[[], set[str]], operator: httpx2.Client
) -> None:
    key, counted = new_key(), charged(product)
    with pytest.raises(httpx2.TransportError):
        product.charge(key, fault="kill@called")
    wait_until(lambda: len(product.workers()) == 2)
    # What the dead one counted stays counted.
    assert charged(product) == counted > 0
    later(product, 5)
    assert alerts() == {"IdempotencyAbandoned"}
    assert key in operator.get(KEYS, params={"attention": "stuck"}).text
    assert "1 attempt died" in operator.get(OVERVIEW).text

    shell.command("idempotency_resume_operations")
    assert alerts() == set()
    assert (product.state(key), product.charged(key), product.effects(key)) == ("succeeded", 1, 1)


def test_a_gateway_that_is_silent_and_stays_silent(
    product: Product, shell: Shell, alerts: Callable[[], set[str]], operator: httpx2.Client
) -> None:
    keys = [new_key() for _ in range(SILENT_CHARGES)]
    with silence(product):
        answers = together(len(keys), lambda number: product.charge(keys[number]))
        assert {answer.json()["code"] for answer in answers} <= {
            "outcome_pending",
            "downstream_unavailable",
        }
        assert alerts() == {"IdempotencyDependencyFails"}
        gateway = product.gateway.url.partition("://")[2]
        assert f"gateway:{gateway} fails" in operator.get(OVERVIEW).text
        later(product, 20)
        assert alerts() == {"IdempotencyDependencyFails", "IdempotencyOutcomeUnknown"}
    # The job gives one up; the others it finishes, now that the gateway answers.
    open_keys = [key for key in keys if product.rows(_OPEN, key)]
    queue = operator.get(DOUBTS).text
    assert all(key in queue for key in open_keys)
    given_up = open_keys[0]
    with product.connect() as connection:
        connection.execute(_USED_UP, [given_up])
    wait_for_probes(product)
    shell.command("idempotency_resume_operations")
    assert alerts() == {"IdempotencyInDoubt"}
    assert product.state(given_up) == "in_doubt"
    assert given_up in operator.get(DOUBTS).text

    later(product, 2)
    wait_until(lambda: product.charged(given_up))
    shell.command("idempotency_reconcile_operations")
    assert alerts() == set()
    for key in open_keys:
        assert product.state(key) == "succeeded"
        assert (product.charged(key), product.effects(key)) == (1, 1)
    assert "resolved" in product.events(given_up)


_OPEN = "SELECT FROM idempotency_idempotencykey WHERE key = %s AND recovery_point <> ''"
_USED_UP = "UPDATE idempotency_idempotencykey SET resumes = 20 WHERE key = %s"


def test_tomorrows_partition_is_missing(
    product: Product, shell: Shell, alerts: Callable[[], set[str]], operator: httpx2.Client
) -> None:
    with product.connect() as connection:
        for row in product.rows(_DAYS_AHEAD):
            connection.execute(f"DROP TABLE {row['relname']}")
    assert alerts() == {"IdempotencyPartitionMissing", "IdempotencyPartitionsLow"}
    ready = product.get("/readyz")
    assert (ready.status_code, ready.json()["checks"]["partitions"]) == (503, "none for tomorrow")
    assert "0 days have partitions ahead" in operator.get(OVERVIEW).text
    assert product.charge(new_key()).status_code == 201

    shell.command("idempotency_create_partitions")
    assert alerts() == set()
    assert product.get("/readyz").status_code == 200


_DAYS_AHEAD = """
    SELECT c.relname FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid
    WHERE c.relkind = 'r'
        AND right(c.relname, 8) > to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')
"""


def test_nobody_sends_the_outbox_and_a_message_is_given_up(
    product: Product,
    shell: Shell,
    alerts: Callable[[], set[str]],
    operator: httpx2.Client,
    receiver: Receiver,
) -> None:
    assert product.charge(new_key()).status_code == 201
    later(product, 5)
    assert alerts() == {"IdempotencyOutboxStuck"}
    assert "are late: does a dispatcher run?" in operator.get(OVERVIEW).text
    assert is_listed(product, operator, "pending")
    shell.command("idempotency_dispatch_outbox")
    assert alerts() == set()

    receiver.status = 410
    assert product.charge(new_key()).status_code == 201
    shell.command("idempotency_dispatch_outbox", says="1 failed")
    assert alerts() == {"IdempotencyOutboxDead"}
    assert "1 message was given up" in operator.get(OVERVIEW).text
    assert is_listed(product, operator, "dead")
    shell.run(_DISCARD)
    assert alerts() == set()


def is_listed(product: Product, operator: httpx2.Client, state: str) -> bool:
    """Whether the admin's list shows the one message in that state."""
    query = "SELECT message_id FROM idempotency_outboxmessage WHERE state = %s"
    (row,) = product.rows(query, state)
    return str(row["message_id"]) in operator.get(OUTBOX, params={"state__exact": state}).text


_DISCARD = (
    "message = OutboxMessage.objects.get(state='dead');"
    " operators.discard(message.pk, seen=Seen.of(message), actor='ops', reason='endpoint is gone')"
)


def test_every_metric_of_the_rules_and_the_dashboard_was_scraped(product: Product) -> None:
    """After everything above: what is only counted once it happens has happened."""
    with product.connect() as connection:
        connection.execute("ANALYZE idempotency_idempotencykey")
    scraped = {sample.name for sample in alert_rules.samples(product.get("/metrics").text)}
    asked = {name for rule in alert_rules.rules() for name in alert_rules.metrics_in(rule.expr)}
    asked |= alert_rules.metrics_in(alert_rules.DASHBOARD.read_text())
    assert asked - scraped == set()


# What it wrote meanwhile


@pytest.fixture(scope="module")
def told(product: Product) -> tuple[Story, list[httpx2.Response]]:
    story = Story(product)
    return story, list(story.run())


def test_no_log_and_no_metric_holds_a_secret(
    product: Product, shell: Shell, told: tuple[Story, list[httpx2.Response]]
) -> None:
    shell.command("idempotency_reclaim_expired_leases")
    story, _ = told
    assert leaks(product, *story.hidden) == []
    scraped = product.get("/metrics").text
    assert not any(secret in scraped for secret in story.hidden)
    # The search would find something: it is told what is there.
    assert leaks(product, "request_finished") != []
    assert "[hidden]" in product.log()


def test_no_error_page_holds_a_secret(told: tuple[Story, list[httpx2.Response]]) -> None:
    story, answers = told
    errors = [answer for answer in answers if answer.status_code >= 400]
    assert {answer.status_code for answer in errors} >= {400, 401, 402, 404, 422, 500}
    for answer in errors:
        shown = answer.text + repr(answer.headers)
        assert not any(secret in shown for secret in story.hidden), (answer.url, shown)
        assert not API_KEYS.search(shown)


def test_the_admin_shows_keys_and_no_other_secret(
    product: Product, operator: httpx2.Client, told: tuple[Story, list[httpx2.Response]]
) -> None:
    story, _ = told
    (number, *_) = product.rows(_NUMBER, story.keys[0])[0].values()
    pages = [
        operator.get(KEYS, params={"q": story.keys[0]}),
        operator.get(f"{KEYS}{number}/change/"),
        operator.get("/admin/payments/apikey/"),
        operator.get("/admin/payments/charge/"),
    ]
    assert [page.status_code for page in pages] == [200] * 4
    assert story.keys[0] in pages[1].text
    # An API key is told by its beginning.
    for secret in ("sk_test_acme", "sk_test_globex", story.wrong_api_key, story.card):
        assert all(secret not in page.text for page in pages), secret
    # Not even by what was searched for.
    assert leaks(product, *story.hidden) == []


_NUMBER = "SELECT id FROM idempotency_idempotencykey WHERE key = %s"
