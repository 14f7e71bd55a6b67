"""Celery tasks whose effect happens once, however often they are delivered.

A broker delivers again what a dead worker had taken, and what ran longer than its visibility
timeout, while it still runs. Acknowledging first instead (``acks_late=False``) loses the task with
the worker. So: acknowledge last, and let the second delivery find that the first one has been.

>>> from idempotency.celery import once
>>> @once(key=lambda order_id: f"order-{order_id}")                       # doctest: +SKIP
... def book(order_id):
...     Order.objects.get(pk=order_id).book()
"""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from celery import current_task, shared_task
from celery.exceptions import Ignore, Reject

from idempotency.conf import settings
from idempotency.core.errors import IdempotencyError

__all__ = ["once"]

logger = logging.getLogger("idempotency")

#: Seconds by which a task's lease outlives its time limit: until then it is certainly dead.
MARGIN = 5.0

#: Seconds. Short, because it decides how soon the successor of a killed worker may begin, and below
#: any sensible visibility timeout.
TIME_LIMIT = 25.0
#: The soft limit as a share of the hard one.
SOFT = 0.8
#: Seconds that a task which cannot be queued again is held before the broker gets it back: it would
#: be delivered again at once, a hundred times a second.
HELD = 1.0


def once(
    function: Callable[..., Any] | None = None,
    *,
    app: Any = None,
    key: Callable[..., str] | None = None,
    ttl: float | timedelta | None = None,
    **options: Any,
) -> Any:
    """A task that is delivered at least once and has its effect once.

    The function runs in one transaction with the record that it ran (``consume_once``); it returns
    JSON, which later deliveries return as well. ``key`` makes the message id from the arguments, so
    that two *calls* for one order are one; without it the id is the task's own, and only deliveries
    of one call are. ``ttl`` is ``consume_once``'s. ``app`` is the Celery application, by default
    any (``shared_task``); ``options`` are the task's. Unless they say otherwise, ``acks_late`` and
    ``reject_on_worker_lost`` are on and ``time_limit`` is 25 seconds, which prefork workers keep.

    A delivery that finds another one at work is queued again for later and not acknowledged away,
    for that one may die. A task that raises, or runs into a time limit, was rolled back and has
    failed, as in Celery: ``autoretry_for`` tries it again, under the same id. A killed worker's
    task runs again ``MARGIN`` seconds after its ``time_limit`` at the latest.

    Called as a function, without ``key``, it just runs.
    """
    if function is None:
        return functools.partial(once, app=app, key=key, ttl=ttl, **options)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        # Here and not above: a project's Celery module is imported before its apps are loaded.
        from idempotency.inbox import consume_once

        task = current_task
        message_id = task.request.id if key is None else key(*args, **kwargs)
        if message_id is None:
            return function(*args, **kwargs)
        work = functools.partial(function, *args, **kwargs)
        try:
            return consume_once(task.name, message_id, work, ttl=ttl, lease=_lease(task)).result
        except IdempotencyError as error:
            if error.retry != "same_key" or task.request.is_eager or not task.request.id:
                raise
            _queue_again(task, error)

    declare = shared_task if app is None else app.task
    reliable = {"acks_late": True, "reject_on_worker_lost": True}
    return declare(**reliable | options | _limits(options) | _not_retried(options))(run)


def _not_retried(options: dict[str, Any]) -> dict[str, Any]:
    """``Reject`` gives a delivery back to a broker that takes no new message just then. Retried for
    an ``autoretry_for`` of everything, it would be sent, which fails, and Celery drops it."""
    of_its_class = getattr(options.get("base"), "dont_autoretry_for", ())
    given = options.get("dont_autoretry_for", of_its_class)
    return {"dont_autoretry_for": (*given, Reject)}


def _limits(options: dict[str, Any]) -> dict[str, float]:
    """Both limits, where one may be given: Celery refuses to send a task whose soft one is later,
    be it the application's."""
    hard, soft = options.get("time_limit"), options.get("soft_time_limit")
    hard = hard or (soft / SOFT if soft else TIME_LIMIT)
    return {"time_limit": hard, "soft_time_limit": soft or hard * SOFT}


def _lease(task: Any) -> timedelta:
    """As long as the attempt can possibly run: a shorter one would let a duplicate begin beside
    it, a longer one keeps the successor of a dead worker waiting."""
    of_this_call = (task.request.timelimit or (None, None))[0]
    limit = of_this_call or task.time_limit or task.app.conf.task_time_limit
    return timedelta(seconds=limit + MARGIN) if limit else settings().lease


def _queue_again(task: Any, error: IdempotencyError) -> NoReturn:
    """Send the same task again, to be run later, and only then let go of this delivery."""
    wait = max(1.0, error.retry_after or settings().retry_after) + random.uniform(0, 1)  # noqa: S311
    logger.info("task %s: %s; it is queued again for in %.0f s", task.request.id, error.code, wait)
    try:
        task.signature_from_request(countdown=wait).apply_async()
    except Exception as lost:
        # Task.retry would drop the message here. The broker keeps it, or gets it back.
        time.sleep(HELD)
        raise Reject(lost, requeue=True) from error
    raise Ignore from error
