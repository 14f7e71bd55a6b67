"""What no log may show."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from typing import Any

import pytest

from idempotency.redaction import HIDDEN, begin, end, hide, redactor

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
        ("sk_live_8e03", HIDDEN),
        ("pin=1234", f"pin={HIDDEN}"),
        ('{"client_secret": "8e03"}', f'{{"client_secret": {HIDDEN}}}'),
        ('{"card_number":8e03,"last4":1}', f'{{"card_number":{HIDDEN},"last4":1}}'),
        ("{'password': '8e03 8e03'}", f"{{'password': {HIDDEN}}}"),
        (r"\"apiKey\": \"8e03\"", rf"\"apiKey\": {HIDDEN}"),
        ("login(password='8e03', user='a')", f"login(password={HIDDEN}, user='a')"),
        ("POST /in?token=8e03&x=1", f"POST /in?token={HIDDEN}&x=1"),
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
    line = "Authorization: none; {'shipping': 'a', 'number': 1} signature = verify(token)"
    assert redact(line) == line


def test_logs_hide_what_a_project_masks(settings: Any) -> None:
    line = '{"holder_name": "Jo", "city": "Oslo"}'
    assert redact(line) == line
    settings.IDEMPOTENCY = {"MASKED_FIELDS": ["holder_name"]}
    assert redact(line) == f'{{"holder_name": {HIDDEN}, "city": "Oslo"}}'


def test_settings_that_cannot_be_read_take_no_log_line_along(settings: Any) -> None:
    settings.IDEMPOTENCY = {"MASKED_FEILDS": ["pin"]}
    assert redact("{'pin': 8, 'a': 1}") == f"{{'pin': {HIDDEN}, 'a': 1}}"


@pytest.fixture
def request_begun() -> Iterator[None]:
    begin()
    yield
    end()


@pytest.mark.usefixtures("request_begun")
def test_what_a_request_brought_is_hidden_until_it_ends() -> None:
    hide("s3cret-key", "s3cret")
    assert redact("ValueError: 's3cret-key' and s3cret") == f"ValueError: '{HIDDEN}' and {HIDDEN}"
    end()
    assert redact("s3cret-key") == "s3cret-key"


@pytest.mark.usefixtures("request_begun")
def test_one_request_hides_nothing_of_anothers() -> None:
    hide("s3cret")
    elsewhere = contextvars.Context()
    assert elsewhere.run(redact, "s3cret") == "s3cret"
    begin()
    assert redact("s3cret") == "s3cret"


@pytest.mark.usefixtures("request_begun")
def test_what_is_too_short_would_leave_no_log() -> None:
    hide("1", "", "12345")
    assert redact("1 and 12345") == "1 and 12345"


def test_outside_a_request_nothing_is_remembered() -> None:
    hide("s3cret")
    begin()
    assert redact("s3cret") == "s3cret"
    end()


@pytest.mark.parametrize("piece", ["a", "\\", 'a"', 'a="', "a=b&", '"a":', " ", "a "])
def test_a_long_line_takes_no_longer_than_it_is(piece: str) -> None:
    # A pattern that looks back over all it has seen would not end here.
    line = piece * 50_000
    assert redact(line) == line
