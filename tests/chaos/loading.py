"""Reads the facts from the database and from the gateway."""

from __future__ import annotations

from typing import Any

import psycopg

from tests.chaos.facts import (
    CHARGE,
    REFUND,
    TRANSFER,
    Answer,
    Event,
    Facts,
    Line,
    Moved,
    Movement,
    Posting,
    Row,
    answer_of,
)
from tests.plugins.gateway import GatewayProcess

_ROWS = """
    SELECT k.id, k.key, k.state, extract(epoch FROM k.created_at)::float8, k.recovery_point,
           r.status, r.headers, r.body
    FROM idempotency_idempotencykey AS k
    LEFT JOIN idempotency_storedresponse AS r
      ON k.state = 'succeeded' AND r.key_id = k.id AND r.day = k.response_day
"""
_EVENTS = """
    SELECT key_id, kind, extract(epoch FROM at)::float8, attempt, data
    FROM idempotency_keyevent ORDER BY id
"""
_MOVEMENTS = {
    CHARGE: "SELECT public_id, idempotency_key_id, status, amount, currency, gateway_reference"
    " FROM payments_charge",
    REFUND: "SELECT public_id, idempotency_key_id, status, amount, currency, gateway_reference"
    " FROM payments_refund",
    TRANSFER: "SELECT public_id, idempotency_key_id, 'succeeded', amount, currency, ''"
    " FROM payments_transfer",
}
_POSTINGS = """
    SELECT t.id, t.kind, coalesce(c.public_id, r.public_id, m.public_id, '')
    FROM payments_ledgertransaction AS t
    LEFT JOIN payments_charge AS c ON c.id = t.charge_id
    LEFT JOIN payments_refund AS r ON r.id = t.refund_id
    LEFT JOIN payments_transfer AS m ON m.id = t.transfer_id
"""
_LINES = """
    SELECT e.transaction_id, e.account_id, e.amount, a.currency
    FROM payments_ledgerentry AS e JOIN payments_ledgeraccount AS a ON a.id = e.account_id
"""
_BALANCES = "SELECT id, balance FROM payments_ledgeraccount WHERE balance IS NOT NULL"


def load(facts: Facts, database: str, gateway: GatewayProcess) -> None:
    """Add what both sides' books say."""
    with psycopg.connect(database) as books:
        facts.rows = _rows(books)
        for kind, query in _MOVEMENTS.items():
            facts.movements += [Movement(kind, *row) for row in books.execute(query)]
        facts.postings = [Posting(*row) for row in books.execute(_POSTINGS)]
        facts.lines = [Line(*row) for row in books.execute(_LINES)]
        facts.balances = dict(books.execute(_BALANCES).fetchall())
    names = ("id", "kind", "amount", "currency", "reference")
    facts.moved = [Moved(*(entry[name] for name in names)) for entry in gateway.ledger()]


def _rows(books: psycopg.Connection[Any]) -> list[Row]:
    rows: dict[int, Row] = {}
    for number, key, state, created, point, *kept in books.execute(_ROWS):
        rows[number] = Row(number, key, state, created, point, _kept(*kept))
    for key_id, *event in books.execute(_EVENTS):
        if key_id in rows:
            rows[key_id].events.append(Event(*event))
    return list(rows.values())


def _kept(status: int | None, headers: list[list[str]], body: bytes | None) -> Answer | None:
    if status is None or body is None:
        return None
    locations = [value for name, value in headers if name.lower() == "location"]
    return answer_of(status, "".join(locations), body.decode())


def open_keys(database: str) -> int:
    """How many keys are neither settled nor free."""
    with psycopg.connect(database) as books:
        query = "SELECT count(*) FROM idempotency_idempotencykey WHERE state = 'processing'"
        row = books.execute(query).fetchone()
    return 0 if row is None else int(row[0])
