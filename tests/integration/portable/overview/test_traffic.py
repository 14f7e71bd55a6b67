"""What all processes ran in each minute of the last day."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis

from idempotency import metrics, traffic
from idempotency.conf import settings as chosen
from idempotency.traffic import Recorder
from tests.integration.portable.api import Api

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def server() -> Iterator[redis.Redis]:
    """The Valkey of the run, without what earlier tests told it."""
    server = redis.Redis.from_url(str(chosen().redis_url))
    server.delete(traffic._HASH)
    yield server
    server.delete(traffic._HASH)
    server.close()


def minute_of(server: redis.Redis) -> int:
    return int(server.time()[0]) // 60  # type: ignore[index]


def put(server: redis.Redis, minute: int, text: str) -> None:
    server.hset(traffic._HASH, str(minute % traffic.MINUTES), f"{minute} {text}")


def told(server: redis.Redis) -> dict[str, int]:
    """What is in the present minute, and the one before, where a test began in it."""
    found: Counter[str] = Counter()
    for value in server.hvals(traffic._HASH):  # type: ignore[union-attr]
        found += traffic._minute(value.decode())[1]
    return dict(found)


def test_what_was_read_can_be_copied_as_a_report_does(server: redis.Redis) -> None:
    put(server, minute_of(server) - 1, "executed=1 executed@0.005=1")
    shown = traffic.read()
    assert shown is not None
    assert asdict(shown)["day"] == {"executed": {0.005: 1}}


def test_a_process_tells_what_it_counted_since_it_was_last_asked(server: redis.Redis) -> None:
    counted: Counter[str] = Counter(executed=7)
    recorder = Recorder(counted.copy)

    recorder.tell()
    assert server.hgetall(traffic._HASH) == {}

    counted["executed"] += 2
    counted["replayed@0.005"] += 1
    recorder.tell()
    recorder.tell()
    assert told(server) == {"executed": 2, "replayed@0.005": 1}


def test_processes_add_to_the_same_minute(server: redis.Redis) -> None:
    mine: Counter[str] = Counter()
    recorders = [Recorder(mine.copy) for _ in range(3)]
    mine["executed"] = 5
    for recorder in recorders:
        recorder.tell()
    assert told(server) == {"executed": 15}


def test_a_slot_of_yesterday_is_overwritten(server: redis.Redis) -> None:
    counted: Counter[str] = Counter()
    recorder = Recorder(counted.copy)
    for minute in (minute_of(server), minute_of(server) + 1):
        put(server, minute - traffic.MINUTES, "executed=1000")
    counted["executed"] = 1
    recorder.tell()
    now = minute_of(server)
    assert server.hget(traffic._HASH, str(now % traffic.MINUTES)) == f"{now} executed=1".encode()


def test_what_is_kept_ends_by_itself(server: redis.Redis) -> None:
    counted: Counter[str] = Counter()
    recorder = Recorder(counted.copy)
    counted["executed"] = 1
    recorder.tell()
    assert timedelta(days=1) < timedelta(seconds=int(server.ttl(traffic._HASH))) <= timedelta(2)  # type: ignore[arg-type]


def test_the_series_has_the_minutes_that_are_over_and_no_older_ones(server: redis.Redis) -> None:
    now = minute_of(server)
    put(server, now - 2, "executed=3 takeover=1")
    put(server, now - traffic.MINUTES, "executed=4")
    put(server, now - traffic.MINUTES - 5, "executed=100")
    # Of the present one as well, by the time it is read.
    put(server, now + 1, "executed=200")

    found = traffic.read()

    assert found is not None
    late = int(found.until.timestamp()) // 60 - now  # a minute may have begun meanwhile
    series = found.counts["executed"]
    assert len(series) == traffic.MINUTES
    assert sum(series) in (3, 7)
    assert series[-2 - late] == 3
    assert found.counts["takeover"][-2 - late] == 1
    assert found.since is not None
    assert found.since <= datetime.fromtimestamp((now - 2) * 60, UTC)


def test_durations_are_summed_over_the_hour_and_the_day(server: redis.Redis) -> None:
    now = minute_of(server)
    put(server, now - 1, "executed@0.005=8 executed@+Inf=1")
    put(server, now - 50, "executed@0.005=1")
    put(server, now - 300, "executed@0.1=20 replayed@0.005=4")
    found = traffic.read()
    assert found is not None
    assert found.hour == {"executed": {0.005: 9, math.inf: 1}}
    assert found.day == {"executed": {0.005: 9, 0.1: 20, math.inf: 1}, "replayed": {0.005: 4}}


@pytest.mark.parametrize(
    ("durations", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0.005: 0}, 0.5, None),
        ({0.1: 1, 0.005: 99}, 0.5, 0.005),
        ({0.1: 1, 0.005: 99}, 0.99, 0.005),
        ({0.1: 2, 0.005: 98}, 0.99, 0.1),
        ({0.005: 1, math.inf: 1}, 0.95, math.inf),
    ],
)
def test_a_percentile_is_the_bound_within_which_the_share_lies(
    durations: dict[float, int], share: float, expected: float | None
) -> None:
    assert traffic.percentile(durations, share) == expected


@pytest.mark.django_db
def test_what_the_metrics_count_is_what_is_told(api: Api) -> None:
    before = metrics.counted()
    api.post("/required", key="one")
    api.post("/required", key="one")
    api.post("/required", {"other": 1}, key="one")
    new = metrics.counted() - before
    assert {name: number for name, number in new.items() if "@" not in name} == {
        "executed": 1,
        "replayed": 1,
        "mismatch": 1,
    }
    timed = Counter(name.partition("@")[0] for name in new.elements() if "@" in name)
    assert timed == {"executed": 1, "replayed": 1, "mismatch": 1}


def test_without_redis_there_is_no_series_and_no_thread(
    configure: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(REDIS_URL=None)
    monkeypatch.setattr(traffic, "_recorder", None)
    traffic.begin(Counter)
    assert traffic._recorder is None
    assert traffic.read() is None


def test_while_redis_is_away_what_was_counted_is_lost_and_nothing_is_raised(
    configure: Any, server: redis.Redis
) -> None:
    counted: Counter[str] = Counter()
    recorder = Recorder(counted.copy)
    counted["executed"] = 1
    present = chosen().redis_url
    configure(REDIS_URL="redis://127.0.0.1:1/0")
    recorder.tell()
    assert traffic.read() is None
    # Later it would be a peak in a minute in which it did not happen.
    configure(REDIS_URL=present)
    recorder.tell()
    assert told(server) == {}


FORKED = """
import os, time
os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "DEBUG": "1"}
import django
django.setup()
from idempotency import metrics, traffic
traffic.EVERY = 3600
metrics.count("POST /a", "executed")
metrics.count("POST /a", "executed")
child = os.fork()
if child == 0:
    traffic.EVERY = 0.01
    metrics.count("POST /a", "executed")
    while sum(sum(of) for of in [traffic._minute(value.decode())[1].values() for value in
            traffic._link_of_settings()._client.hvals(traffic._HASH)]) < 1:
        time.sleep(0.01)
    os._exit(0)
print(os.waitpid(child, 0)[1])
"""


def test_a_forked_process_tells_what_it_counts_itself(server: redis.Redis) -> None:
    program = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, timeout=30, check=True
    )
    assert program.stdout.strip() == "0", program.stderr
    assert told(server) == {"executed": 1}
