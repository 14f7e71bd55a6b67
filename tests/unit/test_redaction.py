"""What no log may show."""

from __future__ import annotations

import contextvars

import pytest

from idempotency.redaction import HIDDEN, hide, hiding, redactor

redact = redactor(r"\bsk_\w{4,}", r"(pin=)\d+")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("GET /v1/idempotency-keys/8e03?x=1", f"GET /v1/idempotency-keys/{HIDDEN}?x=1"),
        ("<WSGIRequest: GET '/keys/idempotency-keys/a%20b'>", None),
        ("GET /admin/?q=8e03&state=failed", f"GET /admin/?q={HIDDEN}&state=failed"),
        ("GET /charges?reference=ch_1&key=0a1b", f"GET /charges?reference=ch_1&key={HIDDEN}"),
        ("Idempotency-Key: 8e03", f"Idempotency-Key: {HIDDEN}"),
        ("{'Idempotency-Key': '8e03'}", None),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {HIDDEN}"),
        ('DETAIL:  Failing row contains (1, "8e03").\nnext', f"DETAIL:  {HIDDEN}\nnext"),
        ("with sk_live_8e03", f"with {HIDDEN}"),
        ("pin=1234", f"pin={HIDDEN}"),
    ],
)
def test_secrets_are_known_by_where_they_stand(line: str, shown: str | None) -> None:
    hidden = redact(line)
    assert HIDDEN in hidden
    assert "8e03" not in hidden
    assert shown is None or hidden == shown


def test_what_is_no_secret_stays() -> None:
    line = "POST /v1/charges 201, key 3f2a9b0c1d2e claimed: none to processing; a?b=q"
    assert redact(line) == line


def test_what_a_request_brought_is_hidden_while_it_runs() -> None:
    with hiding():
        hide("s3cret-key", "s3cret")
        assert (
            redact("ValueError: 's3cret-key' and s3cret") == f"ValueError: '{HIDDEN}' and {HIDDEN}"
        )
    assert redact("s3cret-key") == "s3cret-key"


def test_one_request_hides_nothing_of_anothers() -> None:
    with hiding():
        hide("s3cret")
        elsewhere = contextvars.Context()
        assert elsewhere.run(redact, "s3cret") == "s3cret"


def test_what_is_too_short_would_leave_no_log() -> None:
    with hiding():
        hide("1", "", "12345")
        assert redact("1 and 12345") == "1 and 12345"


def test_outside_a_request_nothing_is_remembered() -> None:
    hide("s3cret")
    with hiding():
        assert redact("s3cret") == "s3cret"
