"""At most N at once, and a refusal instead of a queue."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from idempotency.client.bulkhead import Bulkhead, BulkheadFull


def test_beyond_the_limit_a_call_is_refused_at_once() -> None:
    bulkhead = Bulkhead(2, retry_after=3.0)
    with bulkhead.slot(), bulkhead.slot():
        assert bulkhead.in_use == 2
        with pytest.raises(BulkheadFull) as caught, bulkhead.slot():
            pytest.fail("there was no room")
        assert caught.value.retry_after == 3.0
        assert bulkhead.in_use == 2
    assert bulkhead.in_use == 0


def test_whether_there_is_room_is_said_without_taking_it() -> None:
    bulkhead = Bulkhead(1, retry_after=3.0)
    assert bulkhead.refusal() is None
    with bulkhead.slot():
        refusal = bulkhead.refusal()
        assert refusal is not None
        assert (refusal.retry_after, bulkhead.in_use) == (3.0, 1)
    assert (bulkhead.refusal(), bulkhead.in_use) == (None, 0)


def test_room_comes_free_when_a_call_ends_with_an_error() -> None:
    bulkhead = Bulkhead(1)
    for _ in range(3):
        with pytest.raises(LookupError), bulkhead.slot():
            raise LookupError
    with bulkhead.slot():
        assert bulkhead.in_use == 1


@pytest.mark.usefixtures("eager_threads")
def test_of_64_threads_exactly_the_limit_get_in() -> None:
    bulkhead = Bulkhead(10)
    start, asked = threading.Barrier(64), threading.Barrier(64)

    def run() -> bool:
        start.wait()
        try:
            bulkhead.enter()
        except BulkheadFull:
            return False
        finally:
            asked.wait()  # nobody leaves before all have asked
        bulkhead.leave()
        return True

    with ThreadPoolExecutor(64) as pool:
        tasks = [pool.submit(run) for _ in range(64)]
        assert sum(task.result() for task in tasks) == 10
    assert bulkhead.in_use == 0


def test_leaving_more_often_than_entering_is_an_error() -> None:
    bulkhead = Bulkhead(1)
    with pytest.raises(RuntimeError):
        bulkhead.leave()
    with bulkhead.slot():
        assert bulkhead.in_use == 1


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        Bulkhead(limit)
