"""The id of a request: whose it is, and how far it goes."""

from __future__ import annotations

import re

import pytest

from idempotency.propagation import accept, current_request_id, outgoing_headers, serving


@pytest.mark.parametrize("said", ["7", "a-b_c", "req:1.2=3+4", "x" * 128])
def test_a_callers_id_is_kept(said: str) -> None:
    assert accept(said) == said


@pytest.mark.parametrize(
    "said", [None, "", "x" * 129, "-x", "a b", "a\nb", "a\n", "é", "<b>", "a;b", "${x}", "a'b"]
)
def test_what_is_no_id_is_replaced_by_a_new_one(said: str | None) -> None:
    one, other = accept(said), accept(said)
    assert re.fullmatch("[0-9a-f]{32}", one)
    assert one != other


def test_it_is_known_while_the_request_is_served() -> None:
    assert current_request_id() == ""
    with serving("outer"):
        with serving("inner"):
            assert current_request_id() == "inner"
        assert outgoing_headers() == {"X-Request-ID": "outer"}
    assert outgoing_headers() == {}
