"""Jobs and partitions under traffic."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2
import pytest

from tests.acceptance.product import Jobs, Product, new_key, together, wait_until
from tests.plugins.measured import Measure

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

CLIENTS = 8
OLD_DAYS = 6
RESPONSES, EVENTS = "idempotency_storedresponse", "idempotency_keyevent"


@pytest.fixture(scope="module")
def jobs(product: Product) -> Iterator[Jobs]:
    with product.jobs() as jobs:
        yield jobs


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


@contextmanager
def traffic(product: Product) -> Iterator[list[httpx2.Response]]:
    """Clients that transfer as fast as they can, for as long as the context; their answers."""
    done, answers = threading.Event(), list[httpx2.Response]()

    def send() -> None:
        while not done.is_set():
            answers.append(product.transfer(new_key("traffic")))

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(send) for _ in range(CLIENTS)]
        try:
            wait_until(lambda: len(answers) >= CLIENTS)
            yield answers
            seen = len(answers)
            wait_until(lambda: len(answers) >= seen + CLIENTS)
        finally:
            done.set()
    for client in clients:
        client.result()


def longest(answers: list[httpx2.Response]) -> str:
    return f"{max(answer.elapsed.total_seconds() for answer in answers):.3f} s"


@contextmanager
def behind_the_job(product: Product) -> Iterator[list[str]]:
    """What waits for the job's lock, or stands behind the job in the queue for one, as it is seen
    for as long as the context: the statements."""
    done, waiting = threading.Event(), list[str]()

    def watch() -> None:
        with product.connect() as connection:
            connection.autocommit = True
            while not done.is_set():
                waiting.extend(row[0] for row in connection.execute(_BEHIND_THE_JOB))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield waiting
    finally:
        done.set()
        watcher.join()


_BEHIND_THE_JOB = r"""
    SELECT waiting.query FROM pg_stat_activity AS waiting
    JOIN pg_stat_activity AS job ON job.pid = ANY (pg_blocking_pids(waiting.pid))
    WHERE waiting.datname = current_database() AND waiting.wait_event_type = 'Lock'
    AND (job.query LIKE '% DETACH PARTITION %' OR job.query LIKE 'DROP TABLE %')
"""


def make_old_days(product: Product) -> None:
    """Days that are past the retention and that no key needs, with something in them."""
    with product.connect() as connection:
        for age in range(40, 40 + OLD_DAYS):
            for parent in (RESPONSES, EVENTS):
                connection.execute(
                    "SELECT idempotency_ensure_day_v1(%s, current_date - %s)", [parent, age]
                )
            connection.execute(
                f"INSERT INTO {RESPONSES} (day, key_id, status, headers, body)"  # noqa: S608
                " SELECT current_date - %s, -n, 201, '[]', repeat('x', 500)::bytea"
                " FROM generate_series(1, 5000) AS n",
                [age],
            )


def old_days(product: Product) -> int:
    found = product.rows(
        "SELECT c.relname FROM pg_class AS c WHERE c.relkind = 'r'"  # noqa: S608
        f" AND c.relname ~ '^({RESPONSES}|{EVENTS})_p[0-9]{{8}}$'"
        " AND to_date(right(c.relname, 8), 'YYYYMMDD') < current_date - 30"
    )
    return len(found)


def test_case_51_keys_that_expired_run_once_while_they_are_pruned(
    product: Product, jobs: Jobs
) -> None:
    keys = [new_key("expired") for _ in range(20)]
    for key in keys:
        assert product.transfer(key).status_code == 201
    done, pruned = threading.Event(), list[int]()

    def prune() -> None:
        while not done.is_set():
            pruned.append(jobs.run("prune_expired_keys")["done"])

    pruner = threading.Thread(target=prune)
    pruner.start()
    try:
        product.rows(_EXPIRE)
        wait_until(lambda: sum(pruned) >= len(keys))
        for round_ in range(2, 6):
            product.rows(_EXPIRE)
            # Two clients for each key, and the job that deletes it.
            answers = together(2 * len(keys), lambda number: product.transfer(keys[number // 2]))
            assert {answer.status_code for answer in answers} <= {201, 409}
            assert [product.effects(key) for key in keys] == [round_] * len(keys)
    finally:
        done.set()
        pruner.join()
    product.assert_ledgers_agree()


_EXPIRE = """
    UPDATE idempotency_idempotencykey SET expires_at = clock_timestamp() - interval '1 second'
    WHERE key LIKE 'expired-%%' AND state = 'succeeded' RETURNING id
"""


def test_case_54_days_are_dropped_while_clients_claim_and_none_waits_for_it(
    product: Product, jobs: Jobs, measured: Measure
) -> None:
    make_old_days(product)
    assert old_days(product) == 2 * OLD_DAYS
    with traffic(product) as before:
        wait_until(lambda: len(before) >= 20 * CLIENTS)
    with traffic(product) as during, behind_the_job(product) as waiting:
        result = jobs.run("drop_expired_partitions")
    assert (result["done"], result["failed"]) == (2 * OLD_DAYS, 0)
    assert old_days(product) == 0
    assert waiting == []
    assert Counter(answer.status_code for answer in during) == {201: len(during)}
    measured(f"{CLIENTS} clients, longest transfer without maintenance", longest(before))
    measured(f"{CLIENTS} clients, longest while {2 * OLD_DAYS} days are dropped", longest(during))


def test_case_54_no_claim_waits_while_a_drop_waits_for_a_slow_reader(
    product: Product, jobs: Jobs, pool: ThreadPoolExecutor
) -> None:
    make_old_days(product)
    with product.connect() as reader:
        reader.execute(f"SELECT count(*) FROM {RESPONSES}")  # noqa: S608
        job = pool.submit(jobs.run, "drop_expired_partitions")
        wait_until(lambda: product.rows(_JOB_WAITS))
        # The job stands in its queue, and everybody else passes it by: claims, replays, new keys.
        with behind_the_job(product) as waiting, traffic(product):
            assert product.transfer(key := new_key()).status_code == 201
            assert product.transfer(key).headers["Idempotent-Replayed"] == "true"
        assert waiting == []
    job.result(30)
    assert product.rows(_JOB_WAITS) == []
    assert jobs.run("drop_expired_partitions")["failed"] == 0
    assert old_days(product) == 0


_JOB_WAITS = """
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
    AND query LIKE '%% DETACH PARTITION %%'
"""


def test_case_55_of_two_jobs_at_once_one_works_and_one_leaves(
    product: Product, jobs: Jobs, pool: ThreadPoolExecutor
) -> None:
    make_old_days(product)
    with product.jobs() as others:
        with product.connect() as reader:
            reader.execute(f"SELECT count(*) FROM {RESPONSES}")  # noqa: S608
            first = pool.submit(jobs.run, "drop_expired_partitions")
            wait_until(lambda: product.rows(_JOB_WAITS))
            second = others.run("drop_expired_partitions")
            assert (second["busy"], second["done"]) == (True, 0)
            assert product.rows(_JOB_WAITS)
        assert not first.result(30)["busy"]
        # Nobody is at work any more.
        assert not others.run("drop_expired_partitions")["busy"]
    assert old_days(product) == 0


def test_case_53_a_day_that_is_dropped_under_traffic_stops_no_payment(
    product: Product,
) -> None:
    today = product.rows("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD') AS day")[0]["day"]
    with traffic(product) as answers:
        with product.connect() as connection:
            connection.execute(f"DROP TABLE {RESPONSES}_p{today}, {EVENTS}_p{today}")
        seen = len(answers)
        wait_until(lambda: len(answers) >= seen + 3 * CLIENTS)
    assert Counter(answer.status_code for answer in answers) == {201: len(answers)}
    assert product.rows("SELECT to_regclass(%s)", f"{RESPONSES}_p{today}")[0]["to_regclass"]
    assert "had to create the partitions" in product.log()
    key = new_key()
    first = product.transfer(key)
    again = product.transfer(key)
    assert (again.content, again.headers["Idempotent-Replayed"]) == (first.content, "true")
    product.assert_ledgers_agree()
