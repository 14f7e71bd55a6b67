"""One run of a job at a time."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import Error, connections

logger = logging.getLogger("idempotency")


@contextmanager
def alone(using: str, job: str) -> Iterator[bool]:
    """Whether this is the only run of the job on PostgreSQL; the guarded writes do elsewhere.

    The lock belongs to the session: a connection that is lost gives it up, whatever happens here.
    """
    connection = connections[using]
    if connection.vendor != "postgresql":
        yield True
        return
    number = int.from_bytes(hashlib.sha256(f"idempotency {job}".encode()).digest()[:8], signed=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [number])
        (alone,) = cursor.fetchone()
    try:
        yield alone
    finally:
        if alone:
            _unlock(using, number)


def _unlock(using: str, number: int) -> None:
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT pg_advisory_unlock(%s)", [number])
    except Error:
        logger.warning("could not unlock job %s; its session ends instead", number, exc_info=True)
        connections[using].close()
