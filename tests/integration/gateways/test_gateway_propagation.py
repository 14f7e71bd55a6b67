"""The gateway hears which request a call belongs to."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider

from idempotency.propagation import serving
from tests.integration.gateways.adapter import Connect
from tests.integration.gateways.peers import Play, answers, charges


def headers(request: bytes) -> dict[str, str]:
    lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
    return dict(line.lower().split(": ", 1) for line in lines)


def test_a_call_and_each_repetition_of_it_bear_the_id_of_the_request(
    play: Play, connect: Connect
) -> None:
    peer = play(answers(500, b""), charges)
    with serving("from-the-shop-7"):
        connect(peer.url).charge()
    assert [headers(it)["x-request-id"] for it in peer.requests] == ["from-the-shop-7"] * 2


def test_so_does_a_question(play: Play, connect: Connect) -> None:
    peer = play(answers(200, []))
    with serving("from-the-shop-7"):
        connect(peer.url).adapter.find_charge(reference="ch_1", key="k1")
    assert headers(peer.requests[0])["x-request-id"] == "from-the-shop-7"


@pytest.mark.parametrize("traced", [True, False])
def test_a_trace_goes_on_at_the_gateway(play: Play, connect: Connect, traced: bool) -> None:
    peer = play(charges)
    tracer = TracerProvider().get_tracer("tests")
    if traced:
        with tracer.start_as_current_span("the caller's") as span:
            connect(peer.url).charge()
        assert (
            f"{span.get_span_context().trace_id:032x}" in headers(peer.requests[0])["traceparent"]
        )
    else:
        connect(peer.url).charge()
        assert "traceparent" not in headers(peer.requests[0])
    assert "x-request-id" not in headers(peer.requests[0])
