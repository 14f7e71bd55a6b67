"""SafeClient against a server that dedupes, with a network between them that breaks."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from idempotency.client.backoff import FullJitter
from idempotency.client.breaker import BreakerPolicy, BreakerRegistry, CircuitBreaker
from idempotency.client.budget import BudgetPolicy, RetryBudget
from idempotency.client.messages import new_key
from idempotency.client.policy import CallPolicy, Options
from idempotency.client.safe_client import AsyncSafeClient, SafeClient
from tests.acceptance.test_wheel import install, run, wheel
from tests.integration.client.loopback import PATIENCE, Answer, Seen, Server
from tests.plugins.fault_proxy import Fault, FaultProxy
from tests.plugins.measured import Measure

__all__ = ["wheel"]  # a fixture

Start = Callable[..., Server]
StartProxy = Callable[..., FaultProxy]

IN_USE = json.dumps({"code": "idempotency_key_in_use", "retry": "same_key"}).encode()


class Charges:
    """Does the work of one key once, and says so meanwhile. ``may_end`` holds the work up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: dict[str, bytes | None] = {}
        self.done: list[str] = []
        self.in_use = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, seen: Seen) -> Answer:
        key = next(value for name, value in seen.headers.items() if name == "idempotency-key")
        with self._lock:
            if key in self._answers:
                return self._repeated(self._answers[key])
            self._answers[key] = None
        self.may_end.wait(PATIENCE)
        with self._lock:
            self.done.append(key)
            self._answers[key] = answer = json.dumps({"id": f"ch_{len(self.done)}"}).encode()
        return Answer(201, answer)

    def _repeated(self, answer: bytes | None) -> Answer:
        if answer is not None:
            return Answer(201, answer, {"Idempotent-Replayed": "true"})
        self.in_use += 1
        self.may_end.set()
        headers = {"Content-Type": "application/problem+json", "Retry-After": "1"}
        return Answer(409, IN_USE, headers)


@pytest.fixture
def charges() -> Charges:
    return Charges()


def test_a_client_that_gave_up_on_a_slow_first_attempt_gets_the_first_answer(
    charges: Charges, start_server: Start
) -> None:
    """The attempt's timeout, then 409 *in use*, then the answer of the work that went on."""
    charges.may_end.clear()
    with SafeClient(start_server(charges).url, policy=CallPolicy(attempt_timeout=0.5)) as client:
        response = client.post("/v1/charges", json={"amount": 1000})
    assert response.json() == {"id": "ch_1"}
    assert response.headers["idempotent-replayed"] == "true"
    assert len(charges.done) == 1
    assert charges.in_use >= 1


def test_everything_that_can_happen_to_one_call_happens_and_it_is_charged_once(
    charges: Charges, start_server: Start, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(start_server(charges).url)
    proxy.plan(Fault.RESET, Fault.LOSE, Fault.CUT, Fault.STALL, Fault.DRIP, Fault.PASS)
    policy = CallPolicy(attempts=6, attempt_timeout=0.5, deadline=60)
    with SafeClient(proxy.url, policy=policy) as client:
        assert client.post("/v1/charges", json={"amount": 1000}).json() == {"id": "ch_1"}
    assert len(charges.done) == 1


def test_a_process_that_died_is_continued_by_the_next_one_with_the_key_it_kept(
    charges: Charges, start_server: Start, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(start_server(charges).url)
    proxy.choose = lambda head: Fault.STALL
    key = new_key()
    program = f"""
from idempotency.client import SafeClient
SafeClient({proxy.url!r}).post("/v1/charges", json={{"amount": 1000}}, idempotency_key={key!r})
"""
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        while not charges.done:
            assert process.poll() is None
        process.kill()
    proxy.choose = lambda head: Fault.PASS
    with SafeClient(proxy.url) as client:
        response = client.post("/v1/charges", json={"amount": 1000}, idempotency_key=key)
    assert response.json() == {"id": "ch_1"}
    assert charges.done == [key]


@pytest.mark.parametrize("kind", ["thread", "tasks"])
def test_with_30_percent_of_the_answers_lost_every_charge_is_made_once(
    charges: Charges, start_server: Start, start_proxy: StartProxy, kind: str, measured: Measure
) -> None:
    rng, calls = random.Random(7), 300
    proxy = start_proxy(start_server(charges).url)
    proxy.choose = lambda head: Fault.LOSE if rng.random() < 0.3 else Fault.PASS
    policy = CallPolicy(attempts=12, attempt_timeout=PATIENCE, backoff=FullJitter(0.001, 0.01))
    # Of 300 at once those that are lost come back first, and look like an outage.
    patient = BreakerPolicy(minimum_calls=10 * calls, lease=2 * PATIENCE)
    options: Options = {
        "budget": RetryBudget(BudgetPolicy(ratio=2, floor=50)),
        "breakers": BreakerRegistry(lambda *names: CircuitBreaker(patient)),
    }
    if kind == "thread":
        with SafeClient(proxy.url, policy=policy, **options) as client:
            answers = [client.post("/v1/charges", json={"n": n}).json()["id"] for n in range(calls)]
    else:

        async def main() -> list[str]:
            async with AsyncSafeClient(proxy.url, policy=policy, **options) as client:
                posts = [client.post("/v1/charges", json={"n": n}) for n in range(calls)]
                return [answer.json()["id"] for answer in await asyncio.gather(*posts)]

        answers = asyncio.run(main())
    assert len(charges.done) == len(set(answers)) == calls
    measured(f"requests for each charge, {kind}", f"{proxy.requests / calls:.2f}")


# --- Alone ---------------------------------------------------------------------------------------

ALONE = """
import sys
from idempotency.client import SafeClient, new_key

with SafeClient(sys.argv[1], api_key="sk_1") as client:
    answer = client.post("/v1/charges", json={"amount": 1000}, idempotency_key=new_key())
print(answer.json()["id"])
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in {
    "django", "rest_framework", "celery", "redis", "prometheus_client"
})
assert not loaded, loaded
"""


def test_a_call_loads_no_django(charges: Charges, start_server: Start) -> None:
    url = start_server(charges).url
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ALONE, url],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "ch_1\n"


def test_in_a_blank_environment_the_client_extra_is_enough(
    wheel: Path, tmp_path: Path, charges: Charges, start_server: Start
) -> None:
    python = install(wheel, tmp_path / "venv", {"client"})
    url = start_server(charges).url
    assert run(python, "-W", "error", "-c", ALONE, url, cwd=tmp_path) == "ch_1\n"
    # It was the installed one that did so, not this repository's.
    found = run(python, "-c", "import idempotency; print(idempotency.__file__)", cwd=tmp_path)
    assert Path(found).is_relative_to(tmp_path)
    assert len(charges.done) == 1


def test_the_answer_is_httpx2s_own(charges: Charges, start_server: Start) -> None:
    with SafeClient(start_server(charges).url) as client:
        response = client.post("/v1/charges", json={})
    assert isinstance(response, httpx2.Response)
    assert response.raise_for_status() is response
