"""What is called, and whether it is called at the moment.

With ``REDIS_URL`` all processes share their breakers and budgets, and that is what is shown.
Without, each has its own; then there is only what they told Prometheus.
"""

from __future__ import annotations

import logging
import os
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from django.utils.translation import gettext as _

from idempotency.client.breaker import State
from idempotency.conf import settings
from idempotency.overview.facts import Breaker, Dependencies, Dependency

logger = logging.getLogger("idempotency")

#: Seconds for which Redis is walked.
PATIENCE = 0.2
#: The gauge of ``client.observers.PrometheusObserver``, and what its values mean.
_GAUGE = "idempotency_client_breaker_state"
_STATES = {0: State.CLOSED, 1: State.HALF_OPEN, 2: State.OPEN}


def read_dependencies() -> Dependencies:
    """All that were called lately. Never raises for Redis."""
    chosen = settings()
    if chosen.redis_url is None:
        found = _told_to_prometheus()
        note = _(
            "Each process has breakers and retry budgets of its own, and this is what one of them "
            "said last. With IDEMPOTENCY['REDIS_URL'], and the client's, all share them."
        )
        return Dependencies(_sorted(found), note)
    # The ``redis`` extra is only needed where there is a URL.
    import redis

    from idempotency.client import shared_state

    timeout = chosen.redis_timeout.total_seconds()
    client = redis.Redis.from_url(
        chosen.redis_url, socket_timeout=timeout, socket_connect_timeout=timeout, retry=None
    )
    try:
        shared = shared_state.read_dependencies(client, seconds=PATIENCE)
    except (redis.RedisError, OSError) as error:
        logger.warning("Redis does not say how the dependencies stand: %s", type(error).__name__)
        return Dependencies(note=_("Redis does not answer, so each process decides for itself."))
    finally:
        client.close()
    note = "" if shared.complete else _("There are more in Redis than could be looked at.")
    return Dependencies(_sorted(map(_shown, shared.found)), note)


def _shown(shared: Any) -> Dependency:
    breakers = (Breaker(one.operation, one.state, one.opens_for) for one in shared.breakers)
    return Dependency(shared.name, tuple(breakers), (shared.first_attempts, shared.retries))


def _sorted(found: Any) -> tuple[Dependency, ...]:
    return tuple(sorted(found, key=lambda dependency: (dependency.calm, dependency.name)))


def _told_to_prometheus() -> list[Dependency]:
    breakers: dict[str, list[Breaker]] = defaultdict(list)
    for labels, value in _samples():
        breakers[labels["dependency"]].append(
            Breaker(labels["operation"], _STATES[int(value)], None)
        )
    return [Dependency(name, tuple(ones), None) for name, ones in breakers.items()]


def _samples() -> Iterator[tuple[dict[str, str], float]]:
    try:
        from prometheus_client import REGISTRY, CollectorRegistry
    except ImportError:  # the ``metrics`` extra is not installed
        return
    registry = REGISTRY
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    for family in registry.collect():
        if family.name == _GAUGE:
            yield from ((sample.labels, sample.value) for sample in family.samples)
