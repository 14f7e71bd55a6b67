"""The simulated gateway's events, read with the library of the scheme and not with its own code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from standardwebhooks import Webhook

from tests.integration.client.loopback import Answer, Seen, Server
from tests.plugins.gateway import GatewayProcess, until

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


class Hook:
    """A webhook that fails so many times before it takes anything."""

    def __init__(self, fails: int) -> None:
        self.fails = fails
        self.server = Server(self._answer)

    def _answer(self, seen: Seen) -> Answer:
        return Answer(503 if len(self.server.seen) <= self.fails else 204, b"")

    def events(self) -> list[tuple[str, dict[str, object]]]:
        """The id and content of everything that came, each of it signed."""
        return [
            (seen.headers["Webhook-Id"], Webhook(SECRET).verify(seen.body, dict(seen.headers)))
            for seen in self.server.seen
        ]


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook(fails=2)
    with found.server:
        yield found


@pytest.fixture
def telling(
    hook: Hook,
    start_gateway: Callable[..., GatewayProcess],
    monkeypatch: pytest.MonkeyPatch,
) -> GatewayProcess:
    monkeypatch.setenv("GATEWAY_WEBHOOK_SECRETS", f"{SECRET},whsec_b3RoZXI=")
    return start_gateway("--events-url", f"{hook.server.url}/events", "--events-wait", "0")


def test_an_event_is_signed_and_sent_again_under_one_id_until_it_is_taken(
    hook: Hook, telling: GatewayProcess
) -> None:
    charge = telling.charge(key="k1", reference="ch_1").json()
    telling.charge(key="k1", reference="ch_1")  # a replay is no news
    until(lambda: len(hook.server.seen) == 3)
    assert {seen.path for seen in hook.server.seen} == {"/events"}
    assert len({seen.body for seen in hook.server.seen}) == 1
    event = {"type": "charge.succeeded", "timestamp": charge["created"], "data": charge}
    assert hook.events() == [(f"evt_{charge['id']}", event)] * 3


def test_declines_and_refunds_are_told_too(hook: Hook, telling: GatewayProcess) -> None:
    hook.fails = 0
    telling.charge("tok_declined", reference="ch_1")
    charge = telling.charge(reference="ch_2").json()
    telling.post("/refunds", {"charge": charge["id"], "amount": 10, "reference": "re_1"})
    until(lambda: len(hook.server.seen) == 3)
    told = {
        json.loads(seen.body)["type"]: json.loads(seen.body)["data"] for seen in hook.server.seen
    }
    assert told["charge.declined"]["code"] == "card_declined"
    assert told["charge.succeeded"]["reference"] == "ch_2"
    assert told["refund.succeeded"]["reference"] == "re_1"


def test_a_charge_whose_answer_is_lost_is_told(hook: Hook, telling: GatewayProcess) -> None:
    hook.fails = 0
    assert telling.outcome("tok_answer_lost") == "lost"
    until(lambda: len(hook.server.seen) == 1)
