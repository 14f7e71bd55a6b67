"""Which gateway the settings choose."""

from __future__ import annotations

import atexit
import threading
from functools import cache
from typing import Any, cast

from django.conf import settings
from django.utils.module_loading import import_string

from payments.gateways.base import Gateway

DEFAULT = "payments.gateways.http.HttpGateway"


def get_gateway() -> Gateway:
    """The gateway of ``settings.PAYMENTS_GATEWAY``; one object for equal settings.

    ``BACKEND`` is the dotted path of the adapter's class; its ``from_settings`` is called with the
    other names as keyword arguments, and raises ``ImproperlyConfigured`` for what it does not take.
    """
    given = dict(settings.PAYMENTS_GATEWAY)
    backend = given.pop("BACKEND", DEFAULT)
    # One after another: two threads that come first must not get a bulkhead each.
    with _making:
        return _gateway(backend, **given)


_making = threading.Lock()


@cache
def _gateway(backend: str, **given: Any) -> Gateway:
    gateway = cast(Gateway, import_string(backend).from_settings(**given))
    atexit.register(gateway.close)
    return gateway
