"""Each system check by its id: what raises it, and that nothing else does."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.checks import CheckMessage, Tags, registry, run_checks
from django.db import connections
from django.http import HttpResponse
from django.urls import path
from psycopg import IsolationLevel
from rest_framework.views import APIView

from idempotency import checks
from idempotency.http.decorators import idempotent
from idempotency.rest_framework import IdempotencyMixin

URLS = "tests.unit.checked_urls"


def found(check_id: str) -> list[str]:
    """The messages of one id; all of ours have a hint."""
    messages = [message for message in run_checks(tags=[checks.TAG]) if message.id == check_id]
    assert all(message.hint for message in messages)
    return [message.msg for message in messages]


def ids() -> set[str | None]:
    return {message.id for message in run_checks(tags=[checks.TAG])}


@pytest.fixture
def routes(settings: Any) -> None:
    settings.ROOT_URLCONF = URLS


class Urls:
    """A URLconf of one view, as an object instead of a module."""

    def __init__(self, view: Any) -> None:
        self.urlpatterns = [path("it", view)]


@pytest.fixture
def configure(settings: Any) -> Any:
    def change(**choices: Any) -> None:
        settings.IDEMPOTENCY = choices

    return change


def test_the_reference_project_has_nothing_to_complain_about() -> None:
    assert run_checks(tags=[checks.TAG]) == []


def test_a_project_without_urls_can_be_checked(settings: Any, configure: Any) -> None:
    del settings.ROOT_URLCONF
    configure(LEASE=0, CHECK_UNPROTECTED=True)

    assert ids() == {"idempotency.E003"}


def test_security_and_database_checks_are_found_by_their_tags() -> None:
    security = registry.registry.get_checks(include_deployment_checks=True)
    by_tag = {
        tag: {check.__name__ for check in security if tag in getattr(check, "tags", ())}
        for tag in (Tags.security, Tags.database)
    }
    assert {"check_fingerprint_excludes", "check_unprotected_routes"} <= by_tag[Tags.security]
    assert "check_databases" in by_tag[Tags.database]


# E001


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"TLL": 1}, "Unknown names in IDEMPOTENCY: TLL"),
        ({"TTL": "1 day"}, "must be seconds or a timedelta"),
        ({"BUSY": "waits"}, "must be one of reject, wait"),
        ({"METHODS": "POST"}, "must be a list or a tuple, not 'POST'"),
        ({"STORE": "no.such.Store"}, "No module named 'no'"),
    ],
)
def test_e001_settings_that_cannot_be_read(
    configure: Any, choices: dict[str, Any], words: str
) -> None:
    configure(**choices)

    (message,) = found("idempotency.E001")
    assert words in message
    assert ids() == {"idempotency.E001"}


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({"idempotency_busy": "waits"}, "idempotency_busy must be one of reject, wait"),
        ({"idempotency_lease": "soon"}, "idempotency_lease must be seconds"),
        ({"idempotency_methods": "POST"}, "idempotency_methods must be a list or a tuple"),
        ({"idempotency_methods": ["GET"]}, "a key there is always ignored"),
    ],
)
def test_e001_a_views_policy_that_cannot_be_read_is_named(
    settings: Any, attributes: dict[str, Any], words: str
) -> None:
    view = type("Broken", (IdempotencyMixin, APIView), {"post": lambda self, request: None})
    for name, value in attributes.items():
        setattr(view, name, value)
    settings.ROOT_URLCONF = Urls(view.as_view())

    (message,) = found("idempotency.E001")
    assert f"{__name__}.Broken: " in message
    assert words in message


def test_e001_a_functions_policy_that_cannot_be_read_is_named(settings: Any) -> None:
    @idempotent(scope="tenants")
    def broken(request: Any) -> HttpResponse:
        return HttpResponse()

    settings.ROOT_URLCONF = Urls(broken)

    (message,) = found("idempotency.E001")
    assert message.startswith(f"{__name__}.")
    assert "broken: idempotency_scope must be one of route, tenant" in message


# E002, E003


def test_e002_answers_are_kept_shorter_than_keys(configure: Any) -> None:
    configure(TTL=timedelta(days=31))
    (message,) = found("idempotency.E002")
    assert message.startswith("IDEMPOTENCY: keys live for 31 days")

    configure(TTL=timedelta(days=30))
    assert found("idempotency.E002") == []


@pytest.mark.usefixtures("routes")
def test_e002_e003_of_a_view_name_the_view() -> None:
    (message,) = found("idempotency.E002")
    assert message.startswith(f"{URLS}.LongLived: keys live for 40 days")
    (message,) = found("idempotency.E003")
    assert message.startswith(f"{URLS}.LongLived: the lease must be positive")


@pytest.mark.parametrize(
    "name",
    [
        "TTL",
        "LEASE",
        "MAX_DEADLINE",
        "BATCH_SIZE",
        "MAX_BATCHES",
        "PARTITION_DAYS_AHEAD",
        "RESUME_ATTEMPTS",
    ],
)
@pytest.mark.parametrize("value", [0, -1])
def test_e003_case_41_durations_and_counts_must_be_positive(
    configure: Any, name: str, value: int
) -> None:
    configure(**{name: value})

    (message,) = found("idempotency.E003")
    assert name.lower() in message.lower()


# E004


@pytest.mark.usefixtures("routes")
def test_e004_fields_about_money_are_not_left_out_of_a_fingerprint_silently() -> None:
    messages = found("idempotency.E004")

    assert [message.split(" leaves ")[0] for message in messages] == [f"{URLS}.Careless"] * 2
    assert ["'chargeAmount'" in messages[0], "'to'" in messages[1]] == [True, True]


@pytest.mark.usefixtures("routes")
def test_e004_a_field_can_be_allowed_for_one_view(configure: Any) -> None:
    configure(FINGERPRINT_EXCLUDE_ALLOWED=[f"{URLS}.Careless:to", f"{URLS}.Protected:chargeAmount"])

    (message,) = found("idempotency.E004")
    assert "'chargeAmount'" in message


@pytest.mark.parametrize(
    "name",
    [
        *("amount", "currency", "to", "destination", "account", "recipient", "source", "value"),
        *("amount_minor", "sourceAccount", "destination-iban", "TotalPrice", "from"),
    ],
)
def test_e004_knows_money_in_every_spelling(configure: Any, name: str) -> None:
    configure(FINGERPRINT_EXCLUDE=[name])

    (message,) = found("idempotency.E004")
    assert message.startswith(f"IDEMPOTENCY leaves {name!r} out")


@pytest.mark.parametrize("name", ["note", "valid_to", "resourceful", "discount_code", "metadata"])
def test_e004_lets_other_fields_be_excluded(configure: Any, name: str) -> None:
    configure(FINGERPRINT_EXCLUDE=[name])

    assert found("idempotency.E004") == []


# E006


@pytest.mark.parametrize(
    "key", ["hunter2", "", "c2hvcnQgb2YgdGhpcnR5LXR3byBieXRlcywgYnV0", "é" * 44]
)
def test_e006_a_key_that_is_none_is_named_by_its_place(configure: Any, key: str) -> None:
    configure(ENCRYPTION_KEYS=[Fernet.generate_key(), key])

    (message,) = found("idempotency.E006")
    assert message.startswith("Key 2 of IDEMPOTENCY['ENCRYPTION_KEYS'] is no Fernet key")
    assert not key or key not in message


def test_e006_the_extra_is_missing(configure: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    configure(ENCRYPTION_KEYS=[Fernet.generate_key()])
    assert found("idempotency.E006") == []

    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    configure(ENCRYPTION_KEYS=[None, Fernet.generate_key()])
    (message,) = found("idempotency.E006")
    assert "needs cryptography" in message


# W001


@pytest.mark.parametrize(
    "arguments", ["--timeout 30", "--timeout=30 -w 2", "-t 45", "--bind :80 -t30"]
)
def test_w001_a_request_may_run_longer_than_its_lease(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", arguments)

    (message,) = found("idempotency.W001")
    assert message.startswith("IDEMPOTENCY: the lease (0:00:30) is not longer than a request")


@pytest.mark.parametrize("arguments", ["", "--timeout 29", "--timeout 0", "-w 60", "--timeout"])
def test_w001_is_silent_where_the_timeout_is_shorter_or_not_known(
    monkeypatch: pytest.MonkeyPatch, arguments: str
) -> None:
    monkeypatch.setenv("GUNICORN_CMD_ARGS", arguments)

    assert found("idempotency.W001") == []


# The database's configuration


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Change the configuration, or the kind, of the database of the keys."""

    def change(vendor: str, options: dict[str, Any] | None = None, **names: Any) -> None:
        monkeypatch.setattr(connections["default"], "vendor", vendor)
        configured = connections["default"].settings_dict
        monkeypatch.setitem(configured, "OPTIONS", options or {})
        for name, value in names.items():
            monkeypatch.setitem(configured, name, value)

    return change


def test_w004_sqlite_begins_its_transactions_late(database: Any) -> None:
    for options in ({}, {"transaction_mode": "DEFERRED"}, {"transaction_mode": None}):
        database("sqlite", options)
        (message,) = found("idempotency.W004")
        assert "DEFERRED" in message
    for mode in ("IMMEDIATE", "exclusive"):
        database("sqlite", {"transaction_mode": mode})
        assert found("idempotency.W004") == []
    database("postgresql")
    assert found("idempotency.W004") == []


@pytest.mark.parametrize(
    ("vendor", "options", "refused"),
    [
        ("mysql", {"isolation_level": "read uncommitted"}, True),
        ("mysql", {"isolation_level": "repeatable read"}, False),
        ("sqlite", {"init_command": "PRAGMA read_uncommitted = 1;"}, True),
        ("sqlite", {"init_command": "PRAGMA journal_mode=WAL"}, False),
        # PostgreSQL reads it as READ COMMITTED.
        ("postgresql", {"isolation_level": IsolationLevel.READ_UNCOMMITTED}, False),
    ],
)
def test_e005_an_isolation_level_that_shows_what_is_not_committed(
    database: Any, vendor: str, options: dict[str, Any], refused: bool
) -> None:
    database(vendor, options)

    assert len(found("idempotency.E005")) == refused


@pytest.mark.parametrize(
    ("options", "informs"),
    [
        ({"isolation_level": IsolationLevel.SERIALIZABLE}, True),
        ({"isolation_level": IsolationLevel.REPEATABLE_READ}, True),
        ({"options": r"-c default_transaction_isolation=repeatable\ read"}, True),
        ({"options": "-c default_transaction_isolation=serializable -c x=1"}, True),
        ({"isolation_level": IsolationLevel.READ_COMMITTED}, False),
        ({"options": "-c statement_timeout=1000"}, False),
        ({}, False),
    ],
)
def test_i002_stricter_levels_work_and_cost_retries(
    database: Any, options: dict[str, Any], informs: bool
) -> None:
    database("postgresql", options)

    assert len(found("idempotency.I002")) == informs


def test_e007_a_claim_has_to_commit_by_itself(database: Any) -> None:
    database("postgresql", AUTOCOMMIT=False)
    assert len(found("idempotency.E007")) == 1
    database("postgresql", AUTOCOMMIT=True)
    assert found("idempotency.E007") == []


def test_i001_atomic_requests_are_mentioned(database: Any) -> None:
    database("postgresql", ATOMIC_REQUESTS=True)
    assert len(found("idempotency.I001")) == 1
    database("postgresql", ATOMIC_REQUESTS=False)
    assert found("idempotency.I001") == []


# W005


@pytest.mark.usefixtures("routes")
def test_w005_lists_every_mutating_route_that_nothing_protects(configure: Any) -> None:
    configure(CHECK_UNPROTECTED=True)

    routes = [message.split(" takes no")[0] for message in found("idempotency.W005")]

    assert routes == [
        f"PUT /partly/{{number}} ({URLS}.PartlyProtected)",
        f"POST, DELETE /unprotected ({URLS}.Unprotected)",
        f"POST /plain ({URLS}.Plain)",
        f"POST /posting ({URLS}.posting_function)",
        f"POST, PUT, PATCH, DELETE /function ({URLS}.function)",
        f"POST /api/things/ ({URLS}.Things)",
    ]


@pytest.mark.usefixtures("routes")
def test_w005_is_for_those_who_ask(configure: Any) -> None:
    configure()

    assert found("idempotency.W005") == []


@pytest.mark.usefixtures("routes")
def test_w005_exempts_by_view_by_route_and_by_pattern(configure: Any) -> None:
    configure(
        CHECK_UNPROTECTED=True,
        UNPROTECTED_ALLOWED=[
            f"{URLS}.function",
            "PUT /partly/{number}",
            "DELETE /unprotected",
            "/api/*",
            "*.Plain",
        ],
    )

    routes = [message.split(" (")[0] for message in found("idempotency.W005")]
    assert routes == ["POST /unprotected", "POST /posting"]


# W006


@pytest.mark.usefixtures("routes")
def test_w006_a_misspelt_attribute_is_noticed() -> None:
    (message,) = [m for m in run_checks(tags=[checks.TAG]) if m.id == "idempotency.W006"]

    assert isinstance(message, CheckMessage)
    assert message.msg.startswith(f"{URLS}.Misspelt.idempotency_requried is not a policy")
    assert message.hint == "Did you mean idempotency_required?"


# W007


def test_w007_a_call_counts_as_never_made_while_it_may_be_made(configure: Any) -> None:
    configure(LEASE=60, RECONCILE_WITHDRAW_AFTER=60)
    (message,) = found("idempotency.W007")
    assert message.startswith("IDEMPOTENCY: an attempt has 0:01:00 for its call")

    configure(LEASE=60, RECONCILE_WITHDRAW_AFTER=61)
    assert found("idempotency.W007") == []
