"""Contract cases 50, 56 and 58 to 60: whose key it is, how long, and who may see it."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from prometheus_client import REGISTRY
from rest_framework.exceptions import ValidationError

from idempotency import maintenance, signals
from idempotency.core.errors import CATALOGUE
from idempotency.models import EventKind, IdempotencyKey, KeyEvent
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import (
    MARKER,
    Api,
    abandon,
    assert_problem,
    assert_replay,
    end_lease,
    end_ttl,
    key_of,
    listening,
)
from tests.integration.portable.elsewhere import elsewhere

BOTH_ADAPTERS = pytest.mark.parametrize("path", ["/required", "/plain"])


@BOTH_ADAPTERS
@pytest.mark.parametrize("body", [{"a": 1}, {"a": 2}], ids=["same request", "another"])
def test_case_50_after_the_ttl_a_key_runs_as_new_before_it_is_pruned(
    api: Api, path: str, body: Any, each_store: str
) -> None:
    api.post(path, {"a": 1}, "k")
    before = key_of("k")
    end_ttl("k")

    second = api.post(path, body, "k")

    assert second.status_code == 201
    assert MARKER not in second
    after = key_of("k")
    assert (after.attempt, after.pk == before.pk) == (1, False)
    assert_replay(api.post(path, body, "k"), second)
    assert views.effects() == 2
    assert KeyEvent.objects.get().kind == EventKind.REUSED


def test_case_50_after_the_ttl_a_key_runs_as_new_after_it_was_pruned(
    api: Api, each_store: str
) -> None:
    api.post("/things", {"a": 1}, "k")
    end_ttl("k")
    assert maintenance.prune_expired_keys().done == 1

    second = api.post("/things", {"a": 2}, "k")

    assert second.status_code == 201
    assert MARKER not in second
    assert views.effects() == 2


def test_case_50_a_failed_key_whose_time_is_up_takes_another_request(
    api: Api, each_store: str
) -> None:
    views.behaviour = lambda request: 1 / 0
    api.post("/things", {"a": 1}, "k")
    views.behaviour = None
    end_ttl("k")

    assert api.post("/things", {"a": 2}, "k").status_code == 201
    assert key_of("k").attempt == 1


def test_case_52_a_running_key_outlives_every_ttl(api: Api, each_store: str) -> None:
    abandon(api, "/things", {"a": 1}, "k")
    IdempotencyKey.objects.update(created_at="2000-01-01T00:00:00Z")

    assert maintenance.prune_expired_keys().done == 0
    assert_problem(api.post("/things", {"a": 1}, "k"), 409, "idempotency_key_in_use")


def test_case_52_the_ttl_counts_from_the_completion(api: Api, each_store: str) -> None:
    api.post("/things", {}, "k")

    row = key_of("k")
    assert row.expires_at is not None
    assert row.completed_at is not None
    assert (row.expires_at - row.completed_at).total_seconds() == 24 * 3600


def test_case_56_a_caller_sees_what_became_of_its_own_keys(api: Api, each_store: str) -> None:
    first = api.post("/account", {}, "k", Account="acme")
    api.send("PATCH", "/account", {}, "k", Account="acme")
    api.post("/account", {}, "other", Account="acme")
    api.post("/account", {}, "k", Account="globex")

    mine = api.send("GET", "/account-keys/k", Account="acme").json()["data"]

    assert {entry["route"] for entry in mine} == {"POST /account", "PATCH /account"}
    [posted] = [entry for entry in mine if entry["route"] == "POST /account"]
    assert set(posted) == {
        "key",
        "route",
        "state",
        "attempt",
        "status_code",
        "resource",
        "created",
        "expires",
    }
    assert (posted["key"], posted["state"], posted["attempt"]) == ("k", "succeeded", 1)
    assert (posted["status_code"], posted["resource"]) == (201, first["Location"])
    assert posted["created"] < posted["expires"]


def test_case_56_the_route_narrows_it(api: Api) -> None:
    api.post("/account", {}, "k", Account="acme")
    api.send("PATCH", "/account", {}, "k", Account="acme")

    def routes(wanted: str) -> list[str]:
        answer = api.send("GET", f"/account-keys/k?route={wanted}", Account="acme")
        return [entry["route"] for entry in answer.json()["data"]]

    assert routes("POST /account") == ["POST /account"]
    assert routes("PUT /account") == routes("POST /nowhere") == []


def test_case_56_unknown_or_foreign_is_an_empty_list(api: Api) -> None:
    api.post("/account", {}, "k", Account="acme")

    for key, account in (("k", "globex"), ("unknown", "acme"), ("K", "acme")):
        answer = api.send("GET", f"/account-keys/{key}", Account=account)
        assert (answer.status_code, answer.json()) == (200, {"data": []})


def test_case_56_a_key_that_runs_or_failed_shows_no_answer(api: Api) -> None:
    views.behaviour = lambda request: 1 / 0
    api.post("/account", {}, "k", Account="acme")

    [entry] = api.send("GET", "/account-keys/k", Account="acme").json()["data"]

    assert (entry["state"], entry["status_code"], entry["resource"]) == ("failed", None, None)


def test_a_key_is_found_by_a_route_whose_parameter_was_renamed_since(api: Api) -> None:
    api.post("/things/7/parts", {}, "k")
    IdempotencyKey.objects.update(route="POST /things/{thing}/parts")

    def found(query: str) -> int:
        answer = api.send("GET", f"/account-keys/k{query}", Account="anonymous")
        return len(answer.json()["data"])

    assert found("") == 1
    assert found("?route=POST /things/{parent}/parts") == 1
    assert found("?route=POST /things/{whatever}/parts") == 1
    assert found("?route=POST /things") == 0


def test_case_56_a_key_of_the_whole_account_is_under_the_route_it_was_used_at(api: Api) -> None:
    api.post("/tenant/one", {}, "k")

    def routes(query: str) -> list[str]:
        answer = api.send("GET", f"/account-keys/k{query}", Account="anonymous")
        return [entry["route"] for entry in answer.json()["data"]]

    assert routes("") == ["POST /tenant/one"]
    assert routes("?route=POST /tenant/one") == ["POST /tenant/one"]
    assert routes("?route=POST /tenant/two") == []


ORIGIN = "http://localhost:3000"


def test_case_58_the_preflight_allows_the_header(api: Api, settings: Any) -> None:
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]

    preflight = api.send(
        "OPTIONS",
        "/v1/things",
        Origin=ORIGIN,
        Access_Control_Request_Method="POST",
        Access_Control_Request_Headers="content-type,idempotency-key,x-retry-attempt",
    )

    assert preflight.status_code == 200
    assert preflight["Access-Control-Allow-Origin"] == ORIGIN
    for name in ("idempotency-key", "x-retry-attempt", "x-request-deadline-ms"):
        assert name in preflight["Access-Control-Allow-Headers"]
    assert "POST" in preflight["Access-Control-Allow-Methods"]


def test_case_58_a_browser_can_read_the_marker_of_a_replay(api: Api, settings: Any) -> None:
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN]
    first = api.post("/v1/things", {}, "k", Origin=ORIGIN)

    again = api.post("/v1/things", {}, "k", Origin=ORIGIN)

    assert_replay(again, first)
    exposed = again["Access-Control-Expose-Headers"]
    for name in (MARKER, "Retry-After", "Location", "Link", "ETag"):
        assert name in exposed


def test_case_58_a_replay_for_another_origin_has_that_origins_headers(
    api: Api, settings: Any
) -> None:
    settings.CORS_ALLOWED_ORIGINS = [ORIGIN, "https://two.example"]
    api.post("/v1/things", {}, "k", Origin=ORIGIN)

    assert api.post("/v1/things", {}, "k", Origin="https://two.example")[
        "Access-Control-Allow-Origin"
    ] == ("https://two.example")
    assert "Access-Control-Allow-Origin" not in api.post("/v1/things", {}, "k", Origin="https://no")


def test_case_58_an_origin_that_is_not_listed_is_not_allowed(api: Api, settings: Any) -> None:
    settings.CORS_ALLOWED_ORIGINS = []

    preflight = api.send(
        "OPTIONS", "/v1/things", Origin=ORIGIN, Access_Control_Request_Method="POST"
    )

    assert "Access-Control-Allow-Origin" not in preflight


def test_case_59_two_accounts_with_one_key_are_two_executions_without_a_leak(
    api: Api, each_store: str
) -> None:
    acme = api.post("/account", {"a": 1}, "k", Account="acme")
    globex = api.post("/account", {"a": 2}, "k", Account="globex")

    assert (acme.status_code, globex.status_code) == (201, 201)
    assert acme.content != globex.content
    assert views.effects() == 2
    assert_replay(api.post("/account", {"a": 1}, "k", Account="acme"), acme)
    assert_replay(api.post("/account", {"a": 2}, "k", Account="globex"), globex)


def test_case_59_accounts_and_keys_that_join_to_the_same_text_stay_apart(api: Api) -> None:
    for account, key in (("acme", "1k"), ("acme1", "k"), ("", "acme1k")):
        assert api.post("/account", {}, key, Account=account).status_code == 201
    assert views.effects() == 3


def test_case_59_two_credentials_of_one_account_are_one_scope(api: Api) -> None:
    User.objects.create_user("member", password="secret")
    session = Client(raise_request_exception=False)
    assert session.login(username="member", password="secret")
    first = Api(session).post("/guarded", {}, "k")

    basic = "Basic bWVtYmVyOnNlY3JldA=="
    assert_replay(api.post("/guarded", {}, "k", Authorization=basic), first)
    assert views.effects() == 1


def test_case_59_two_users_are_two_scopes(api: Api) -> None:
    for name in ("one", "two"):
        User.objects.create_user(name, password="secret")
        session = Client(raise_request_exception=False)
        assert session.login(username=name, password="secret")
        assert MARKER not in Api(session).post("/guarded", {}, "k")
        assert MARKER not in Api(session).post("/plain", {}, "k")
    assert views.effects() == 4


class Counts:
    """What the counters say since they were last asked."""

    def __init__(self) -> None:
        self._before = self._read()

    def since(self) -> dict[tuple[str, str], float]:
        now = self._read()
        changed = {
            labels: value - self._before.get(labels, 0)
            for labels, value in now.items()
            if value != self._before.get(labels, 0)
        }
        self._before = now
        return changed

    @staticmethod
    def _read() -> dict[tuple[str, str], float]:
        return {
            (sample.labels["route"], sample.labels["outcome"]): sample.value
            for family in REGISTRY.collect()
            for sample in family.samples
            if sample.name == "idempotency_requests_total"
        }


def test_case_60_metrics_count_each_outcome(api: Api, each_store: str) -> None:
    counts = Counts()
    route = "POST /required"

    api.post("/required", {}, "k")
    assert counts.since() == {(route, "executed"): 1}
    api.post("/required", {}, "k")
    assert counts.since() == {(route, "replayed"): 1}
    api.post("/required", {"a": 1}, "k")
    assert counts.since() == {(route, "mismatch"): 1}
    end_ttl("k")
    api.post("/required", {}, "k")
    assert counts.since() == {(route, "expired"): 1, (route, "executed"): 1}
    abandon(api, "/required", {}, "k2")
    api.post("/required", {}, "k2")
    assert counts.since() == {(route, "in_use"): 1}
    end_lease("k2")
    api.post("/required", {}, "k2")
    assert counts.since() == {(route, "takeover"): 1, (route, "executed"): 1}


def test_case_60_metrics_count_releases_failures_and_doubt(api: Api, each_store: str) -> None:
    counts = Counts()

    def refuse(request: Any) -> Any:
        raise ValidationError("no")

    views.behaviour = refuse
    api.post("/required", {}, "k")
    assert counts.since() == {("POST /required", "released"): 1}
    views.behaviour = lambda request: 1 / 0
    api.post("/required", {}, "k")
    assert counts.since() == {("POST /required", "failed"): 1}
    other_side.reset()
    elsewhere.script = [elsewhere.lost]
    api.post("/buy-once", {}, "k")
    assert counts.since()[("POST /buy-once", "in_doubt")] == 1
    api.post("/buy-once", {}, "k")
    assert counts.since() == {("POST /buy-once", "rejected"): 1}
    api.post("/body-field", {})
    assert counts.since() == {}


#: All that a metric of ours may be told apart by: each has few values, and they come out of code.
LABELS = {
    *("route", "outcome", "le", "channel"),
    *("dependency", "operation", "verdict", "number", "reason"),
}


def test_case_60_no_key_is_in_a_label(api: Api) -> None:
    key = "a-secret-of-its-caller"
    for path in ("/required", "/plain", "/things/7/parts", "/set/"):
        api.post(path, {}, key)
        api.post(path, {"a": 1}, key)

    for family in REGISTRY.collect():
        for sample in family.samples:
            if sample.name.startswith("idempotency"):
                assert set(sample.labels) <= LABELS
                assert all(key not in value for value in sample.labels.values())
    # The pattern, never the concrete path: its values are without number.
    assert ("POST /things/{parent}/parts", "executed") in Counts._read()


@pytest.mark.parametrize("path", ["/required", "/tenant/one", "/plain"])
def test_signals_name_the_digest_of_the_key(api: Api, path: str, each_store: str) -> None:
    told: list[tuple[str, bytes, str]] = []

    def receiver(name: str) -> Any:
        return lambda **arguments: told.append((name, arguments["digest"], arguments["route"]))

    claimed, completed, replayed = map(receiver, ("claimed", "completed", "replayed"))
    with (
        listening(signals.key_claimed, claimed),
        listening(signals.key_completed, completed),
        listening(signals.key_replayed, replayed),
    ):
        api.post(path, {}, "k")
        api.post(path, {}, "k")

    digest = bytes(key_of("k").digest)
    assert told == [(name, digest, f"POST {path}") for name in ("claimed", "completed", "replayed")]


def test_a_receiver_that_fails_breaks_no_request(api: Api) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("a receiver's own defect")

    with listening(signals.key_claimed, broken), listening(signals.key_completed, broken):
        assert api.post("/things", {}, "k").status_code == 201


def test_metrics_or_logs_that_fail_break_no_request_and_keep_nothing_from_others(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def broken(_: Any) -> None:
        raise RuntimeError("a defect of ours")

    for signal in (signals.key_claimed, signals.key_completed):
        monkeypatch.setattr(signal, "own", [broken, lambda _: heard.append("own")])
    with listening(signals.key_completed, lambda **_: heard.append("user's")):
        assert api.post("/things", {}, "k").status_code == 201

    assert heard == ["own", "own", "user's"]
    assert caplog.text.count("receiver <function") == 2


@pytest.mark.parametrize("error", CATALOGUE, ids=lambda error: str(error.code))
def test_the_type_of_every_problem_is_a_page(api: Api, error: Any) -> None:
    page = api.send("GET", f"/problems/{error.code}/")

    assert page.status_code == 200
    assert page["Content-Type"].startswith("text/html")
    assert error.code in page.content.decode()


def test_an_unknown_problem_has_no_page(api: Api) -> None:
    assert api.send("GET", "/problems/no_such_problem/").status_code == 404


def test_the_type_can_be_somewhere_else(api: Api, configure: Any) -> None:
    configure(PROBLEM_TYPE_BASE="https://docs.example/problems")

    problem = assert_problem(api.post("/required"), 400, "idempotency_key_missing")

    assert problem["type"] == "https://docs.example/problems/idempotency_key_missing/"
