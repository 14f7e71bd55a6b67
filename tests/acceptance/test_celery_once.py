"""Tasks whose effect happens once: workers are killed, the broker is restarted and impatient."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import redis
from celery import Celery

from config import embedded
from config.services import Service
from config.stack import ROOT
from tests.acceptance.product import Seeded, drop, wait_until

pytestmark = [pytest.mark.stack, pytest.mark.postgresql]

WORKER = [sys.executable, "-m", "celery", "-A", "tests.acceptance.once_app", "worker"]
WORKER += ["-c", "3", "-l", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"]


@dataclass
class Tasks:
    """A worker with a broker and a database of its own, and tasks that can be held."""

    folder: Path
    broker: embedded.Valkey
    database: str
    worker: Service

    def send(self, name: str, *, hold: str = "", task: str = "effect") -> None:
        """Queue a task; it waits at ``hold`` until released."""
        if hold:
            (self.folder / f"{name}.{hold}.hold").touch()
        app = Celery(broker=self.broker.url, set_as_current=False)
        with app.connection_for_write() as connection:
            app.send_task(f"acceptance.{task}", [name], connection=connection)

    def release(self, name: str) -> None:
        for hold in self.folder.glob(f"{name}.*.hold"):
            hold.unlink()

    def reached(self, name: str, point: str) -> int:
        """The process that waits at the point."""
        (held, *_) = wait_until(lambda: self.passed(name, point))
        return int(held.name.split(".")[2])

    def passed(self, name: str, point: str) -> list[Path]:
        """A file for each time that a process came to the point."""
        return list(self.folder.glob(f"{name}.{point}.*.*"))

    def effects(self, *names: str) -> list[int]:
        """How often each has happened, once the broker has no message any more."""
        wait_until(self._is_everything_acknowledged, 60)
        with psycopg.connect(self.database) as connection:
            rows = connection.execute("SELECT name FROM once_effect").fetchall()
        return [rows.count((name,)) for name in names]

    def log(self) -> str:
        return self.worker.log.read_text(errors="replace")

    def _is_everything_acknowledged(self) -> bool:
        if self.worker.died() is not None:
            # As `make run` does. This Celery gives up when its broker goes away.
            self.worker.start_again()
        # At one moment, and then again: a worker takes a message before it notes that it has it.
        with redis.Redis.from_url(self.broker.url) as server:
            for _ in range(3):
                if any(server.pipeline().llen("celery").hlen("unacked").execute()):
                    return False
                time.sleep(0.02)
        return True


@pytest.fixture(scope="module")
def tasks(seeded: Seeded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tasks]:
    folder = tmp_path_factory.mktemp("once")
    database = seeded.copy()
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("CREATE TABLE once_effect (name text NOT NULL)")
    with embedded.Valkey(folder / "valkey", durable=True) as broker:
        env = os.environ | {"DATABASE_URL": database, "REDIS_URL": broker.url}
        env |= {"ONCE_FOLDER": str(folder), "SECRET_KEY": "of the acceptance tests"}
        worker = Service("worker", WORKER, env, folder / "worker.log", grace=5, cwd=ROOT)
        with worker:
            made = Tasks(folder, broker, database, worker)
            wait_until(lambda: "ready." in made.log(), 60)
            yield made
    drop(database)


def test_effects_happen_once_when_processes_are_killed_and_the_broker_is_impatient(
    tasks: Tasks,
) -> None:
    """Three at once, so that their leases run out together."""
    tasks.send("in the middle", hold="work")
    tasks.send("after the commit", hold="done")
    tasks.send("slow", hold="work", task="long_effect")
    for name, point in (("in the middle", "work"), ("after the commit", "done")):
        os.kill(tasks.reached(name, point), signal.SIGKILL)
        tasks.release(name)
    # The broker has given the slow one to a second process, which found it at work.
    wait_until(lambda: "long_effect" in again(tasks))
    tasks.release("slow")
    assert tasks.effects("in the middle", "after the commit", "slow") == [1, 1, 1]
    assert len(tasks.passed("after the commit", "done")) == 2
    assert len(tasks.passed("after the commit", "work")) == 1


def test_an_effect_happens_once_when_the_worker_is_killed_and_the_broker_restarted(
    tasks: Tasks,
) -> None:
    tasks.send("lost", hold="work")
    tasks.reached("lost", "work")
    assert tasks.worker.process is not None
    tasks.broker.kill()  # the worker has given up, or tries to come back, when it is killed itself
    os.killpg(tasks.worker.process.pid, signal.SIGKILL)
    tasks.worker.process.wait()
    tasks.broker.start()
    tasks.release("lost")
    assert tasks.effects("lost") == [1]


def again(tasks: Tasks) -> str:
    """What was queued again because another process was at it."""
    lines = [line for line in tasks.log().splitlines() if "it is queued again" in line]
    held = {line.split("task ")[1].split(":")[0] for line in lines}
    started = [line for line in tasks.log().splitlines() if "received" in line]
    return "\n".join(line for line in started if any(one in line for one in held))
