"""Whether the proxy's rules for keys are Stripe's: the same requests to another imitation of it.

``stripe-stateful-mock`` (npm) was written by others from the same documentation. What both do is
asked of both. It does not know 409 while the first request runs, and keeps a 400, so neither is
compared; Stripe's documentation has both ("Advanced error handling").
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.gateways.benches import broken, busy
from tests.integration.gateways.stripe.servers import API_KEY, Server, StripeRules
from tests.plugins.gateway import PATIENCE, ROOT

PACKAGE = "stripe-stateful-mock@0.0.16"
#: Outlives the run, so that the registry is asked once.
CACHE = ROOT / ".data" / "npm" / PACKAGE
PROGRAM = """
const app = require("stripe-stateful-mock").createExpressApp();
const server = require("http").createServer(app);
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
"""

Answer = tuple[int, bool, bytes]


class Imitation:
    """Something that behaves like Stripe, asked with the names that it has for things."""

    def __init__(self, url: str, cards: dict[str, str], before: dict[str, Callable[[], None]]):
        self._http = httpx2.Client(base_url=url, timeout=PATIENCE, trust_env=False)
        self._cards, self._before = cards, before

    def charge(self, card: str, key: str, *, amount: int = 1000, secret: str = API_KEY) -> Answer:
        """The status, whether it is a replay, and the body."""
        self._before.get(card, lambda: None)()
        response = self._http.post(
            "/v1/charges",
            data={"amount": amount, "currency": "eur", "source": self._cards[card]},
            headers={"Idempotency-Key": key, "Authorization": f"Bearer {secret}"},
        )
        replayed = response.headers.get("Idempotent-Replayed") == "true"
        return response.status_code, replayed, response.content

    def error_of(self, answer: Answer) -> Any:
        return httpx2.Response(answer[0], content=answer[2]).json().get("error", {}).get("type")

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def ours(stripe_rules: StripeRules) -> Iterator[Imitation]:
    made = Imitation(
        stripe_rules.url,
        cards={
            "good": "pm_card_visa",
            "declined": "pm_card_chargeCustomerFail",
            "busy": "pm_card_visa",
            "broken": "pm_card_visa",
        },
        before={
            "busy": lambda: stripe_rules.end(busy()),
            "broken": lambda: stripe_rules.end(broken(executed=False)),
        },
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def stateful_mock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = _installed()
    program = tmp_path_factory.mktemp("stateful-mock") / "serve.js"
    program.write_text(PROGRAM)
    command = ["env", f"NODE_PATH={folder}/node_modules", "LOG_LEVEL=silent", "node", program]
    server = Server(command, program.with_suffix(".log"))
    yield server
    server.close()


@pytest.fixture
def theirs(stateful_mock: Server) -> Iterator[Imitation]:
    cards = {"good": "tok_visa", "declined": "tok_chargeDeclined"}
    made = Imitation(
        stateful_mock.url, {**cards, "busy": "tok_429", "broken": "tok_500"}, before={}
    )
    yield made
    made.close()


def _installed() -> Path:
    """Where the package is. Without node, npm or a registry the test is skipped and says so."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no node with npm")
    if not (CACHE / "node_modules" / "stripe-stateful-mock").is_dir():
        fresh = CACHE.with_name(f"{PACKAGE}.{os.getpid()}")
        fresh.mkdir(parents=True)
        command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", PACKAGE]
        try:
            subprocess.run(command, cwd=fresh, check=True, capture_output=True, timeout=90)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            shutil.rmtree(fresh)
            pytest.skip(f"npm could not install {PACKAGE}: {type(error).__name__}")
        fresh.rename(CACHE)
    return CACHE


@pytest.fixture(params=["ours", "theirs"])
def imitation(request: pytest.FixtureRequest) -> Imitation:
    made: Imitation = request.getfixturevalue(request.param)
    return made


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def test_the_first_answer_has_no_marker_and_the_second_is_the_first(
    imitation: Imitation, key: str
) -> None:
    status, replayed, body = imitation.charge("good", key)
    assert (status, replayed) == (200, False)
    assert imitation.charge("good", key) == (200, True, body)


def test_two_keys_are_two_charges(imitation: Imitation, key: str) -> None:
    first, second = imitation.charge("good", key), imitation.charge("good", f"{key}2")
    assert not second[1]
    assert first[2] != second[2]


def test_other_parameters_under_a_key_are_a_400(imitation: Imitation, key: str) -> None:
    first = imitation.charge("good", key)
    other = imitation.charge("good", key, amount=2000)
    assert (other[0], imitation.error_of(other)) == (400, "idempotency_error")
    assert imitation.charge("good", key) == (200, True, first[2])


@pytest.mark.parametrize(("card", "status"), [("declined", 402), ("broken", 500)])
def test_a_failure_that_began_is_kept(
    imitation: Imitation, key: str, card: str, status: int
) -> None:
    first = imitation.charge(card, key)
    assert first[:2] == (status, False)
    assert imitation.charge(card, key) == (status, True, first[2])


def test_being_turned_away_is_not_kept(imitation: Imitation, key: str) -> None:
    assert imitation.charge("busy", key)[:2] == (429, False)
    assert imitation.charge("busy", key)[:2] == (429, False)
    assert imitation.charge("good", key)[:2] == (200, False)


def test_not_being_let_in_is_not_kept(imitation: Imitation, key: str) -> None:
    assert imitation.charge("good", key, secret="of nobody")[:2] == (401, False)
    assert imitation.charge("good", key)[:2] == (200, False)


def test_a_key_is_in_use_while_its_first_request_runs(
    ours: Imitation, stripe_rules: StripeRules, key: str
) -> None:
    stripe_rules.gate.clear()
    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(ours.charge, "good", key)
        assert stripe_rules.arrived.wait(PATIENCE)
        assert ours.charge("good", key)[0] == 409
        stripe_rules.gate.set()
        assert first.result(PATIENCE)[0] == 200
