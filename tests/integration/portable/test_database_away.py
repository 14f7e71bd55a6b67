"""Contract case 48 in one process: without the database nothing runs, and the answer says so."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import close_old_connections, connection
from django.test import Client

from tests.integration.portable import views
from tests.integration.portable.api import Api, assert_problem, keys
from tests.integration.portable.conformance.harness import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def database_away() -> Iterator[None]:
    """Nobody listens where the database was."""
    chosen = connection.settings_dict
    before = dict(chosen)
    connection.close()
    if connection.vendor == "sqlite":
        chosen["NAME"] = "/nowhere/database.sqlite3"
    else:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            chosen.update(HOST="127.0.0.1", PORT=taken.getsockname()[1])
    try:
        yield
    finally:
        connection.close()
        chosen.update(before)


@pytest.mark.parametrize("path", ["/required", "/plain", "/set/", "/waiting", "/buy"])
def test_case_48_without_the_database_it_is_a_503_and_nothing_runs(
    api: Api, path: str, each_store: str
) -> None:
    with database_away():
        answer = api.post(path, {"a": 1}, "k")

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert int(answer["Retry-After"]) >= 1
    assert views.calls == []
    assert keys() == 0
    assert api.post(path, {"a": 1}, "k").status_code == 201


@pytest.fixture
def health_checks() -> Iterator[None]:
    connection.close()
    connection.settings_dict["CONN_HEALTH_CHECKS"] = True
    yield
    connection.close()
    connection.settings_dict["CONN_HEALTH_CHECKS"] = False


@pytest.mark.postgresql
def test_a_session_that_the_database_ended_is_replaced_before_the_claim(
    api: Api, each_store: str, health_checks: None
) -> None:
    """Whatever else asks Django for a cursor first has it replaced; the claim may be the first."""
    connection.ensure_connection()
    pid = connection.connection.info.backend_pid
    elsewhere(lambda: end_session(pid))
    close_old_connections()  # as at the beginning of a request
    assert api.post("/required", {}, "k").status_code == 201


def end_session(pid: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [pid])


@pytest.mark.postgresql
def test_case_48_on_a_standby_it_is_a_503_and_nothing_runs(api: Api, each_store: str) -> None:
    """After a failover a session may be on what is no primary any more: it reads as ever."""
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_read_only = on")
    answer = api.post("/required", {"a": 1}, "k")
    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert views.calls == []
    assert api.post("/required", {"a": 1}, "k").status_code == 201, "on a new session"


@pytest.mark.parametrize("path", ["/guarded", "/plain"])
def test_case_48_when_the_caller_cannot_be_recognised_it_is_a_503_as_well(
    api: Api, path: str
) -> None:
    User.objects.create_user("member", password="secret")
    client = Client(raise_request_exception=False)
    assert client.login(username="member", password="secret")

    with database_away():
        answer = Api(client).post(path, {}, "k")

    assert_problem(answer, 503, "idempotency_unavailable", retry="same_key")
    assert views.calls == []


def test_case_48_a_malformed_key_needs_no_database(api: Api) -> None:
    with database_away():
        assert_problem(api.post("/required", {}, "mal,formed"), 400, "idempotency_key_invalid")
        assert_problem(api.post("/required", {}), 400, "idempotency_key_missing")


def test_case_48_an_error_of_the_handler_is_not_taken_for_the_stores(api: Api) -> None:
    """Only what comes before the handler is a reason to say that nothing ran."""

    def outage(request: Any) -> Any:
        raise ConnectionError("another service")

    views.behaviour = outage
    assert api.post("/required", {}, "k").status_code == 500
