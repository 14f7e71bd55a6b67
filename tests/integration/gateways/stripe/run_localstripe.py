"""Start localstripe: one line with its URL, then serve until SIGTERM.

A program of its own, because localstripe is under the GPL: neither the product nor a test imports
it. Its own start-up listens on every address and keeps its books in one file of /tmp; here they are
in memory, behind loopback.

What it lacks of Stripe and the adapter needs is added: lists by time of creation, newest first, and
the search, which like Stripe's finds nothing that is new. It ignores ``Idempotency-Key``, and that
is what it is for.
"""

import re
import socket
import time
from typing import Any

from aiohttp import web
from localstripe import resources

#: Seconds until the index has what was written.
INDEX_LAG = 60


def main() -> None:
    resources.Store.dump_to_disk = lambda store: None
    for kind in (resources.PaymentIntent, resources.BalanceTransaction, resources.Refund):
        kind._api_list_all = classmethod(_in_time(kind._api_list_all.__func__))
    search = ("GET", "/v1/payment_intents/search", _search)
    resources.extra_apis.append(search)
    # Only now: it reads the routes while it is imported.
    from localstripe.server import app

    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
    web.run_app(app, sock=listener, print=None, access_log=None, shutdown_timeout=0.2)


def _in_time(list_all: Any) -> Any:
    def listed(cls: Any, url: str, created: Any = None, **asked: Any) -> Any:
        found = list_all(cls, url, **asked)
        bounds = {name: int(second) for name, second in (created or {}).items()}
        oldest_first = sorted(found._list, key=lambda it: int(it.created))
        found._list = [
            it
            for it in oldest_first[::-1]
            if bounds.get("gte", 0) <= int(it.created) < bounds.get("lt", 1 << 62)
        ]
        return found

    return listed


def _search(query: str, limit: Any = None, **unknown: Any) -> Any:
    (name, value) = re.fullmatch(r"metadata\['(\w+)'\]:'(\w+)'", query).groups()
    found = resources.List("/v1/payment_intents/search", limit=limit)
    found._list = [
        it
        for key, it in resources.store.items()
        if key.startswith("payment_intent:")
        and it.metadata.get(name) == value
        and int(it.created) < time.time() - INDEX_LAG
    ]
    found.object = "search_result"
    return found


if __name__ == "__main__":
    main()
