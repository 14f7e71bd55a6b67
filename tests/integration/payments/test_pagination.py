"""Pages stay right while the list grows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from payments.models import Charge
from tests.integration.payments.api import Api, problem


def add(api: Api, count: int) -> list[str]:
    """Charges written in this order; their ids."""
    return [
        Charge.objects.create(merchant=api.merchant, amount=1, currency="EUR").public_id
        for _ in range(count)
    ]


def page(api: Api, **query: Any) -> dict[str, Any]:
    arguments = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
    response = api.get(f"/v1/charges?{arguments}")
    assert response.status_code == 200, response.content
    result: dict[str, Any] = response.json()
    return result


def walk(api: Api, limit: int) -> list[list[str]]:
    pages, cursor = [], None
    while True:
        answer = page(api, limit=limit, cursor=cursor)
        pages.append([charge["id"] for charge in answer["data"]])
        cursor = answer["next_cursor"]
        if cursor is None:
            return pages


def test_every_charge_is_on_one_page_newest_first(acme: Api, globex: Api) -> None:
    ids = add(acme, 7)
    add(globex, 2)
    newest = ids[::-1]
    assert walk(acme, 3) == [newest[:3], newest[3:6], newest[6:]]
    assert walk(acme, 7) == [newest]


def test_charges_of_one_moment_are_neither_lost_nor_repeated(acme: Api) -> None:
    ids = add(acme, 5)
    Charge.objects.update(created=datetime(2026, 1, 1, tzinfo=UTC))
    assert [it for page in walk(acme, 2) for it in page] == ids[::-1]


def test_what_is_written_meanwhile_does_not_shift_the_pages(acme: Api) -> None:
    ids = add(acme, 4)
    first = page(acme, limit=2)
    add(acme, 3)
    second = page(acme, limit=2, cursor=first["next_cursor"])
    assert [charge["id"] for charge in second["data"]] == [ids[1], ids[0]]


def test_an_empty_list_is_a_page(acme: Api) -> None:
    assert page(acme) == {"data": [], "next_cursor": None}


def test_a_page_deep_down_reads_no_more_rows_than_the_first(acme: Api) -> None:
    add(acme, 120)
    first = page(acme, limit=100)
    with CaptureQueriesContext(connection) as queries:
        page(acme, limit=10, cursor=first["next_cursor"])
    sql = queries.captured_queries[-1]["sql"]
    assert "OFFSET" not in sql
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute("EXPLAIN " + sql)
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "payments_charge_page" in plan
    assert "Sort" not in plan


@pytest.mark.parametrize("limit", ["0", "101", "-1", "1.5", "", "x", "%00", "1e1", "9" * 40, "٣"])
def test_a_bad_limit_is_refused(acme: Api, limit: str) -> None:
    document = problem(acme.get(f"/v1/charges?limit={limit}"), 400, "invalid_request")
    assert list(document["errors"]) == ["limit"]


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "%00",
        "é",
        "0" * 31,
        "0" * 33,
        "f" * 32,
        "0" * 16 + "f" * 16,
        "01" + "0" * 30,
        "A" * 500,
    ],
)
def test_a_made_up_cursor_is_refused(acme: Api, cursor: str) -> None:
    document = problem(acme.get(f"/v1/charges?cursor={cursor}"), 400, "invalid_request")
    assert list(document["errors"]) == ["cursor"]


def test_any_cursor_of_the_right_form_is_a_place_in_the_list(acme: Api) -> None:
    ids = add(acme, 1)
    assert page(acme, cursor="0" * 32)["data"] == []
    latest = page(acme, cursor="00" + "f" * 14 + "7" + "f" * 15)
    assert [charge["id"] for charge in latest["data"]] == ids
