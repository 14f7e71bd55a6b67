"""Spans for OpenTelemetry: claim, run, call, complete."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from idempotency import maintenance, spans
from tests.integration.portable import elsewhere as other_side
from tests.integration.portable import views
from tests.integration.portable.api import Api, key_of
from tests.integration.portable.elsewhere import elsewhere

pytestmark = pytest.mark.django_db

KEY = "a-secret-of-its-caller"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    # Without making it the provider of the whole test run.
    monkeypatch.setattr(spans, "_tracer", provider.get_tracer("tests"))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    spans._is_recorded.cache_clear()
    yield exporter
    spans._is_recorded.cache_clear()
    provider.shutdown()


def named(exporter: InMemorySpanExporter) -> dict[str, ReadableSpan]:
    found = {span.name.removeprefix("idempotency."): span for span in exporter.get_finished_spans()}
    exporter.clear()
    return found


def is_inside(inner: ReadableSpan, outer: ReadableSpan) -> bool:
    return inner.parent is not None and inner.parent.span_id == outer.context.span_id


def test_atomic_work_is_claimed_run_and_completed(
    api: Api, exporter: InMemorySpanExporter, each_store: str
) -> None:
    api.post("/required", {}, KEY)
    found = named(exporter)
    assert sorted(found) == ["claim", "complete", "run"]
    assert is_inside(found["complete"], found["run"])
    digest = bytes(key_of(KEY).digest).hex()[:12]
    whose = {"idempotency.route": "POST /required", "idempotency.key": digest}
    assert found["claim"].attributes == whose
    assert found["run"].attributes == {**whose, "idempotency.attempt": 1}

    api.post("/required", {}, KEY)
    assert list(named(exporter)) == ["claim"]


def test_an_operation_is_called_as_well(
    api: Api, exporter: InMemorySpanExporter, each_store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_side.reset()
    told: list[dict[str, str]] = []
    elsewhere.script = [lambda key: told.append(spans.context_headers()) or elsewhere.lost(key)]
    api.post("/buy", {}, KEY)
    found = named(exporter)
    assert sorted(found) == ["call", "claim", "run"]
    assert found["call"].attributes == {"idempotency.operation": "tests.buy"}
    # What the other side makes of it is a part of the call.
    assert f"{found['call'].context.span_id:016x}" in told[0]["traceparent"]
    maintenance.resume_operations()
    assert sorted(named(exporter)) == ["call", "complete"]


def test_an_error_is_named_and_not_quoted(api: Api, exporter: InMemorySpanExporter) -> None:
    def fail(request: Any) -> Any:
        raise ValueError(f"Failing row contains ({KEY})")

    views.behaviour = fail
    api.post("/required", {}, KEY)
    run = named(exporter)["run"]
    assert run.status.status_code is trace.StatusCode.ERROR
    assert dict(run.attributes or {})["error.type"] == "ValueError"
    assert KEY not in run.to_json()


def test_no_span_holds_the_key(api: Api, exporter: InMemorySpanExporter) -> None:
    api.post("/required", {}, KEY)
    api.post("/buy", {}, KEY)
    finished = exporter.get_finished_spans()
    assert len(finished) >= 7
    assert all(KEY not in span.to_json() for span in finished)


def test_without_the_extra_nothing_is_wrapped() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from idempotency import spans
def function(): ...
assert spans.traced("idempotency.run", dict)(function) is function
assert spans.context_headers() == {}
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_a_provider_that_is_set_while_requests_are_served_is_noticed_within_a_second(
    api: Api, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.25]
    monkeypatch.setattr(spans, "time", SimpleNamespace(monotonic=lambda: now[0]))
    with monkeypatch.context() as before:
        before.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
        api.post("/required", {}, "k0")

    api.post("/required", {}, "k1")
    assert exporter.get_finished_spans() == ()

    now[0] += 1
    api.post("/required", {}, "k2")
    assert sorted(named(exporter)) == ["claim", "complete", "run"]


def test_where_nobody_keeps_spans_none_is_made(
    api: Api, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace, "get_tracer_provider", trace.ProxyTracerProvider)
    spans._is_recorded.cache_clear()
    assert api.post("/required", {}, KEY).status_code == 201
    assert exporter.get_finished_spans() == ()
