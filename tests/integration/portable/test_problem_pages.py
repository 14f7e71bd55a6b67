"""The page behind each problem's ``type``."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
from django.test import Client

from idempotency.core.errors import CATALOGUE, IdempotencyError


@pytest.mark.parametrize("error", CATALOGUE)
def test_every_problem_has_a_page_that_says_what_to_do(
    client: Client, error: type[IdempotencyError]
) -> None:
    page = client.get(f"/problems/{error.code}/")
    assert page.status_code == 200
    text = unescape(page.content.decode())
    assert error.default_detail in text
    answers = {
        "same_key": "Repeat the request unchanged, with the same Idempotency-Key.",
        "new_key": "No, with a new key.",
        "never": "not with a new one before you know what became of the request",
    }
    assert [retry for retry, words in answers.items() if words in text] == [error.retry]
    example = json.loads(text.split("<pre>")[1].split("</pre>")[0].partition("\n\n")[2])
    assert example["code"] == error.code
    assert example["retry"] == error.retry
    assert example["type"].endswith(f"/problems/{error.code}/")


def test_a_page_needs_nothing_from_elsewhere(client: Client) -> None:
    page = client.get("/problems/outcome_pending/").content.decode()
    assert re.findall(r'(?:src|href)="([^"]*)"', page) == [
        f"/problems/{error.code}/" for error in CATALOGUE if error.code != "outcome_pending"
    ]
    assert "<script" not in page
    assert "url(" not in page


def test_there_is_no_page_for_a_problem_that_does_not_exist(client: Client) -> None:
    assert client.get("/problems/nonsense/").status_code == 404
    assert client.post("/problems/outcome_pending/").status_code == 405
