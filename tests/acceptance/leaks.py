"""What no log of a product may hold: its callers' keys, its own for the gateway, API keys.

`conftest.py` searches the logs of every product of the acceptance tests once it has ended.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance.product import Product, wait_until

API_KEYS = re.compile(r"sk_(test|live)_\w+|whsec_\w+")
#: Random parts of keys, by which thousands of them are found at once.
_RANDOM = re.compile(r"[0-9a-f]{32,64}")


def leaks(product: Product, *secrets: str) -> list[str]:
    """Lines of the product's logs, and of its metrics, that hold a secret."""
    keys = product.keys | {str(entry["idempotency_key"]) for entry in product.gateway.ledger()}
    random = {match[0] for key in keys for match in _RANDOM.finditer(key)}
    return [
        f"{name}: {line[:300]}"
        for name, line in _lines(product)
        if API_KEYS.search(line)
        or not random.isdisjoint(_RANDOM.findall(line))
        or any(secret in line for secret in secrets)
    ]


def _lines(product: Product) -> Iterator[tuple[str, str]]:
    for log in sorted(product.folder.rglob("*.log")):
        for line in _readable(log):
            yield log.name, line
    for file in sorted(product.folder.glob("metrics/*.db")):
        yield file.name, file.read_bytes().decode("latin-1")


def _readable(log: Path) -> Iterable[str]:
    return log.read_text(errors="replace").splitlines()


@dataclass
class Story:
    """Requests that go well and wrong, each with what must not be shown."""

    product: Product
    #: In the header, in the body, and as a request id.
    keys: list[str] = field(default_factory=lambda: [f"key-{secrets.token_hex(16)}" for _ in "123"])
    wrong_api_key: str = field(default_factory=lambda: f"sk_test_{secrets.token_hex(8)}")
    card: str = field(default_factory=lambda: f"tok_{secrets.token_hex(16)}")
    words: str = field(default_factory=lambda: f"payer {secrets.token_hex(16)}")

    @property
    def hidden(self) -> list[str]:
        return [*self.keys, self.wrong_api_key, self.card, self.words]

    def send(self, method: str, path: str, *, key: str | None = None, **options: Any) -> Any:
        headers = self.product.headers(key, options.pop("fault", None))
        headers |= options.pop("headers", {})
        url = self.product.url + path
        return httpx2.request(method, url, headers=headers, timeout=30, trust_env=False, **options)

    def run(self) -> Iterator[httpx2.Response]:
        key, in_body, everywhere = self.keys
        charge = {
            "amount": 1000,
            "currency": "EUR",
            "source": "tok_visa",
            "description": self.words,
        }
        for body in (charge, charge, charge | {"amount": 2}):
            yield self.send("POST", "/v1/charges", key=key, json=body)
        card = charge | {"source": self.card}
        yield self.send("POST", "/v1/charges", json=card | {"client_token": in_body})
        for wrong in (card | {"amount": "x"}, card | {self.words: 1}):
            yield self.send("POST", "/v1/charges", key=key, json=wrong)
        yield self.send("POST", "/v1/charges", key=key, content=f'{{"source": "{self.card}')
        same = {"X-Request-ID": everywhere}
        yield self.send("POST", "/v1/charges", key=everywhere, json=charge, headers=same)
        stolen = {"Authorization": f"Bearer {self.wrong_api_key}"}
        yield self.send("POST", "/v1/charges", key=key, json=charge, headers=stolen)
        for path in (f"/v1/idempotency-keys/{key}", f"/v1/{key}", f"/admin/{key}", f"/{key}"):
            yield self.send("GET", path, key=key)
        yield from self._failures(key, in_body)

    def _failures(self, key: str, in_body: str) -> Iterator[httpx2.Response]:
        transfer = {"to": self.product.accounts["globex"], "amount": 1, "currency": "EUR"}
        transfer |= {"description": self.words}
        # The commit is refused, by a database that may show the row.
        yield self.send("POST", "/v1/transfers", key=key, json=transfer, fault="commit")
        body = transfer | {"client_token": in_body}
        yield self.send("POST", "/v1/transfers", json=body, fault="commit")
        with suppress(httpx2.TransportError):
            yield self.send("POST", "/v1/transfers", key=self.keys[2], json=body, fault="kill@work")
        wait_until(lambda: len(self.product.workers()) == 2)
