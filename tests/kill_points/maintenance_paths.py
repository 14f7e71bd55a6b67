"""The jobs that keep the tables small and the messages going, cut like the others."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

from django.db import connection

from idempotency import maintenance, partitions
from idempotency.models import DeliveryEvent, IdempotencyKey, OutboxMessage
from idempotency.outbox.dispatcher import Dispatcher
from idempotency.stores import clock
from tests.kill_points.paths import HOUR, Path, Transfer, rows, run_alone

PARENTS = ("idempotency_storedresponse", "idempotency_keyevent")
#: Longer ago than answers are kept.
OLD = timedelta(days=60)


class Kept(Path):
    """Whatever the job does, an answer that has to be kept is replayed after it."""

    def arrange(self) -> dict[str, Any]:
        transfer = Transfer(self.bench)
        kept = transfer.arrange()
        answer = transfer.send(kept)
        assert answer.status_code == 201, answer.content
        return {"kept": kept, "answer": answer.content.decode()}

    def recover(self, facts: dict[str, Any], *, jobs_first: bool) -> None:
        if jobs_first:
            run_alone(type(self).job)
        again = Transfer(self.bench).send(facts["kept"])
        assert again.headers.get("Idempotent-Replayed") == "true", again.content
        assert again.content.decode() == facts["answer"]
        Transfer(self.bench).check(facts["kept"], again.json())
        run_alone(type(self).job)
        self.check(facts)

    def act(self, facts: dict[str, Any]) -> None:
        type(self).job()

    job = staticmethod(maintenance.prune_expired_keys)

    def check(self, facts: dict[str, Any]) -> None:
        """What the job is for is done."""
        raise NotImplementedError


class Prune(Kept):
    name = "prune job"

    def arrange(self) -> dict[str, Any]:
        facts = super().arrange()
        expired = super().arrange()["kept"]
        over = IdempotencyKey.objects.filter(key=expired["key"])
        assert over.update(expires_at=clock.now() - HOUR) == 1
        return facts | {"expired": expired["key"]}

    def check(self, facts: dict[str, Any]) -> None:
        assert not IdempotencyKey.objects.filter(key=facts["expired"]).exists()
        assert self.bench.product.effects(facts["expired"]) == 1


class CreateDays(Kept):
    name = "create partitions"
    job = staticmethod(maintenance.create_partitions)

    def arrange(self) -> dict[str, Any]:
        run_alone(maintenance.create_partitions)
        facts = super().arrange()
        for parent in PARENTS:
            newest = max(days(parent))
            _execute(f"DROP TABLE {parent}_p{newest:%Y%m%d}")
        return facts | {"newest": newest.isoformat()}

    def check(self, facts: dict[str, Any]) -> None:
        for parent in PARENTS:
            assert max(days(parent)).isoformat() == facts["newest"]
        assert partitions.plan("default", create=True) == []


class DropDays(Kept):
    name = "drop partitions"
    job = staticmethod(maintenance.drop_expired_partitions)

    def arrange(self) -> dict[str, Any]:
        facts = super().arrange()
        old = partitions.database_now("default").date() - OLD
        for parent in PARENTS:
            rows("SELECT idempotency_ensure_day_v1(%s, %s)", parent, old)
        return facts | {"old": old.isoformat()}

    def check(self, facts: dict[str, Any]) -> None:
        old = date.fromisoformat(facts["old"])
        for parent in PARENTS:
            assert rows("SELECT to_regclass(%s)", f"{parent}_p{old:%Y%m%d}") == [(None,)]
        assert partitions.plan("default", retire=True) == []


class Dispatch(Path):
    """A message may arrive twice, under one id; it is never lost."""

    name = "outbox dispatch"

    def arrange(self) -> dict[str, Any]:
        DeliveryEvent.objects.all()._raw_delete("default")
        OutboxMessage.objects.all()._raw_delete("default")
        transfer = Transfer(self.bench)
        assert transfer.send(transfer.arrange()).status_code == 201
        [message] = OutboxMessage.objects.all()
        return {"message": str(message.message_id)}

    def act(self, facts: dict[str, Any]) -> None:
        # In this thread: the order of the points is then the same each time.
        Dispatcher(threads=0).run()

    def recover(self, facts: dict[str, Any], *, jobs_first: bool) -> None:
        OutboxMessage.objects.filter(state="sending").update(due_at=clock.now() - HOUR)
        Dispatcher(threads=0).run()
        [message] = OutboxMessage.objects.all()
        assert str(message.message_id) == facts["message"]
        assert message.state == "delivered", message.state

    def confirm(self, facts: dict[str, Any]) -> None:
        arrived = self.bench.arrivals[facts["message"]]
        assert 1 <= arrived <= 2, f"it arrived {arrived} times"


def days(parent: str) -> list[date]:
    found = partitions.list_partitions("default")
    return [partition.day for partition in found if partition.parent == parent]


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
