"""Celery tasks that run once, without a broker; ``acceptance/test_celery.py`` has real workers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Task
from celery.exceptions import Ignore, Reject
from django.contrib.auth.models import Group

from config.celery import app
from idempotency import celery as once_module
from idempotency import inbox
from idempotency.celery import once
from idempotency.core.errors import StoreUnavailable
from idempotency.inbox import MessageInProgress
from tests.integration.portable.api import key_of

pytestmark = pytest.mark.django_db


@once(app=app, name="tests.add_group")
def add_group(name: str) -> int:
    Group.objects.create(name=name)
    if name == "fails":
        raise LookupError
    return Group.objects.count()


@once(app=app, name="tests.add_group_by_name", key=lambda name, **_: f"group-{name}", time_limit=10)
def add_group_by_name(name: str, *, note: str = "") -> str:
    Group.objects.create(name=name)
    return note


def test_deliveries_of_one_call_run_once_and_all_return_its_result() -> None:
    first, again = (add_group.apply(["a"], task_id="t1") for _ in range(2))
    assert (first.get(), again.get(), Group.objects.count()) == (1, 1, 1)
    assert key_of("t1").route == "inbox:tests.add_group"
    assert add_group.apply(["b"], task_id="t2").get() == 2


def test_calls_with_one_key_run_once_whatever_else_they_say() -> None:
    first = add_group_by_name.apply(["a"], {"note": "first"}, task_id="t1")
    second = add_group_by_name.apply(["a"], {"note": "second"}, task_id="t2")
    assert (first.get(), second.get(), Group.objects.count()) == ("first", "first", 1)


def test_a_task_that_raises_has_failed_and_left_nothing_and_runs_again() -> None:
    with pytest.raises(LookupError):
        add_group.apply(["fails"], task_id="t1", throw=True)
    assert Group.objects.count() == 0
    assert add_group.apply(["works"], task_id="t1").get() == 1


def test_called_as_a_function_it_just_runs_unless_it_has_a_key() -> None:
    assert (add_group("a"), add_group("b")) == (1, 2)
    assert [add_group_by_name("c", note=note) for note in "xy"] == ["x", "x"]


def test_a_task_is_acknowledged_last_and_given_back_when_its_worker_is_lost() -> None:
    assert add_group.acks_late
    assert add_group.reject_on_worker_lost
    assert (add_group.soft_time_limit, add_group.time_limit) == (20, 25)
    assert add_group_by_name.time_limit == 10
    assert add_group_by_name.soft_time_limit == 8


@pytest.mark.parametrize(
    ("given", "soft", "hard"),
    [({"soft_time_limit": 40}, 40, 50), ({"soft_time_limit": 1, "time_limit": 9}, 1, 9)],
)
def test_its_soft_limit_is_never_the_later_one(
    given: dict[str, int], soft: float, hard: float
) -> None:
    @once(app=app, name=f"tests.limited_to_{hard}", **given)
    def limited() -> None:
        """Do nothing."""

    assert (limited.soft_time_limit, limited.time_limit) == (soft, hard)


def test_what_is_given_back_to_the_broker_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    @once(app=app, name="tests.retried_for_all", autoretry_for=(Exception,), max_retries=None)
    def retried(name: str) -> None:
        """Do nothing."""

    monkeypatch.setattr(once_module, "HELD", 0.0)
    delivery = Delivery(retried, MessageInProgress(), monkeypatch)
    delivery.broker_is_away = True
    with pytest.raises(Reject) as rejected:
        delivery.run()
    assert rejected.value.requeue


class Stubborn(Task):
    dont_autoretry_for = (LookupError,)


@pytest.mark.parametrize("given", [{"base": Stubborn}, {"dont_autoretry_for": (LookupError,)}])
def test_what_a_task_does_not_want_retried_is_not(given: dict[str, Any]) -> None:
    name = f"tests.stubborn_by_{next(iter(given))}"

    @once(app=app, name=name, autoretry_for=(Exception,), **given)
    def stubborn() -> None:
        raise LookupError

    task: Any = stubborn
    assert task.apply(task_id="t1").state == "FAILURE"
    assert key_of("t1").attempt == 1


def test_its_lease_outlives_its_time_limit() -> None:
    assert once_module._lease(add_group) == timedelta(seconds=30)
    assert once_module._lease(add_group_by_name) == timedelta(seconds=15)

    # A call may bring limits of its own.
    add_group.push_request(timelimit=(100, 90))
    try:
        assert once_module._lease(add_group) == timedelta(seconds=105)
    finally:
        add_group.pop_request()


class Delivery:
    """As if a worker had taken the task from a broker."""

    def __init__(self, task: Any, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        self.task, self.published = task, []
        self.broker_is_away = False

        def consume(*_: Any, **__: Any) -> None:
            raise error

        def signature(**options: Any) -> Delivery:
            self.published.append(options)
            return self

        monkeypatch.setattr(inbox, "consume_once", consume)
        monkeypatch.setattr(task, "signature_from_request", signature)

    def apply_async(self) -> None:
        if self.broker_is_away:
            raise OSError("no broker")

    def run(self) -> None:
        self.task.push_request(id="t1", is_eager=False, called_directly=False, args=["a"])
        try:
            with_task(self.task, lambda: self.task.run("a"))
        finally:
            self.task.pop_request()


def with_task(task: Any, call: Any) -> None:
    from celery._state import _task_stack

    _task_stack.push(task)
    try:
        call()
    finally:
        _task_stack.pop()


@pytest.mark.parametrize(
    ("error", "least"), [(MessageInProgress(retry_after=7), 7), (StoreUnavailable(), 2)]
)
def test_a_delivery_beside_another_is_queued_again_before_it_is_let_go(
    error: Any, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivery = Delivery(add_group, error, monkeypatch)
    with pytest.raises(Ignore):
        delivery.run()
    (options,) = delivery.published
    assert least <= options["countdown"] <= least + 1


def test_where_it_cannot_be_queued_again_the_broker_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(once_module, "HELD", 0.0)
    delivery = Delivery(add_group, MessageInProgress(), monkeypatch)
    delivery.broker_is_away = True
    with pytest.raises(Reject) as rejected:
        delivery.run()
    assert rejected.value.requeue
