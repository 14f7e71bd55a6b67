"""`make demo`: what goes wrong with payments, told against the running stack of `make run`.

Every line says what was done, what came back, and whether that is what should have; after each
story comes what the gateway's own ledger has to say. Exit code: 0 when everything was as it should
be, 1 when a line differs or no stack runs.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from idempotency.client import SafeClient

DATA = Path(os.environ.get("STACK_DATA") or Path(__file__).resolve().parent.parent / ".data")
#: Seconds. The client of story 6 waits for a lease (30) and the next run of the job (10).
PATIENCE = 120.0
CLICKS = 20
NO_ANSWER = "no answer"


class Demo:
    """Two merchants' view of the stack, and what has been told so far."""

    def __init__(self, stack: dict[str, Any]) -> None:
        self.url, self.gateway = stack["url"], stack["gateway"]
        acme, self.globex = stack["merchants"]
        self.authorization = {"Authorization": f"Bearer {acme['api_key']}"}
        # No kept connections: one to a worker that was killed would fail the next request.
        limits = httpx2.Limits(max_keepalive_connections=0)
        self.http = httpx2.Client(timeout=30, trust_env=False, limits=limits)
        self.seen = len(self.ledger())
        self.lines = self.differing = 0

    # Telling

    def tell(self, what: str, got: str, *, expected: str) -> None:
        right = got == expected
        self.lines += 1
        self.differing += not right
        line = f"{'ok' if right else 'NO':<4}{what:<58}{got}"
        print(line if right else f"{line}   (expected: {expected})", flush=True)

    def tell_ledger(self, *amounts: int) -> None:
        """What the gateway's ledger has more than at the last time: these charges, in cents."""
        entries = self.ledger()
        new, self.seen = entries[self.seen :], len(entries)
        got = _movements([entry["amount"] for entry in new])
        self.tell("      gateway's ledger", got, expected=_movements(amounts))

    def tell_balance(self, before: int, spent: int) -> None:
        got = _spent(before - self.balance())
        self.tell("      the balance", got, expected=_spent(spent))

    # Doing

    def charge(self, key: str, amount: int, source: str = "tok_visa", fault: str = "") -> str:
        return self.post("/v1/charges", key, _charge(amount, source), fault)

    def transfer(self, key: str, amount: int, fault: str = "") -> str:
        body = {"to": self.globex["account"], "amount": amount, "currency": "EUR"}
        return self.post("/v1/transfers", key, body, fault)

    def post(self, path: str, key: str, body: dict[str, Any], fault: str = "") -> str:
        """Send a request; its answer in a few words, such as `402 card_declined replayed`."""
        headers = self.authorization | {"Idempotency-Key": key}
        if fault:
            headers["X-Demo-Fault"] = fault
        try:
            answer = self.http.post(self.url + path, json=body, headers=headers)
        except httpx2.TransportError:
            return NO_ANSWER
        return _in_words(answer)

    def charge_and_hang_up(self, key: str, amount: int) -> None:
        """Send a request whole, and close the connection before its answer."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=30)
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        body = json.dumps(_charge(amount, "tok_visa"))
        connection.request("POST", "/v1/charges", body, self.authorization | headers)
        connection.close()

    # Looking

    def get(self, path: str) -> Any:
        answer = self.http.get(self.url + path, headers=self.authorization)
        return answer.raise_for_status().json()

    def ledger(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.http.get(f"{self.gateway}/ledger").json()
        return entries

    def state(self, key: str) -> str:
        """What the product says of a key; empty before it knows it."""
        states = self.get(f"/v1/idempotency-keys/{key}")["data"]
        return str(states[0]["state"]) if states else ""

    def balance(self) -> int:
        lines = self.get("/v1/balance")["data"]
        return next(int(line["amount"]) for line in lines if line["currency"] == "EUR")

    def wait_for(self, key: str, state: str) -> str:
        """The state of a key once it is the given one, or when patience is at its end."""
        deadline = time.monotonic() + PATIENCE
        while (now := self.state(key)) != state and time.monotonic() < deadline:
            time.sleep(0.1)
        return now


# --- The stories ----------------------------------------------------------------------------------


def a_charge(demo: Demo) -> None:
    demo.tell("1. A charge of 19.99 EUR", demo.charge(_key(), 1999), expected="201")
    demo.tell_ledger(1999)


def a_lost_answer(demo: Demo) -> None:
    key = _key()
    demo.charge_and_hang_up(key, 500)
    state = demo.wait_for(key, "succeeded")
    demo.tell("2. The answer is lost on the way back; the key", state, expected="succeeded")
    demo.tell("      sent again", demo.charge(key, 500), expected="201 replayed")
    demo.tell_ledger(500)


def a_double_click(demo: Demo) -> None:
    key = _key()
    with ThreadPoolExecutor(CLICKS) as pool:
        answers = Counter(pool.map(lambda _: demo.charge(key, 700), range(CLICKS)))
    got = ", ".join(f"{count} x {answer}" for answer, count in sorted(answers.items()))
    expected = f"1 x 201, {CLICKS - 1} x 201 replayed"
    demo.tell(f"3. A double click: {CLICKS} at once", got, expected=expected)
    demo.tell_ledger(700)


def another_amount(demo: Demo) -> None:
    key = _key()
    demo.tell("4. A charge of 9.00 EUR", demo.charge(key, 900), expected="201")
    answer = demo.charge(key, 9000)
    demo.tell("      the same key for 90.00 EUR", answer, expected="422 idempotency_key_reused")
    demo.tell_ledger(900)


def a_decline(demo: Demo) -> None:
    key = _key()
    answer = demo.charge(key, 400, "tok_declined")
    demo.tell("5. A card that is declined", answer, expected="402 card_declined")
    answer = demo.charge(key, 400, "tok_declined")
    demo.tell("      sent again", answer, expected="402 card_declined replayed")
    demo.tell_ledger()


def a_killed_worker(demo: Demo) -> None:
    key = _key()
    answer = demo.charge(key, 1200, fault="kill@called")
    demo.tell("6. The worker is killed after the gateway charged", answer, expected=NO_ANSWER)
    demo.tell_ledger(1200)
    demo.tell("      nobody has saved that yet; the key", demo.state(key), expected="processing")
    began = time.monotonic()
    print("          (the client stays away; a lease and a run of the job later...)", flush=True)
    state = demo.wait_for(key, "succeeded")
    what = f"      recovered without the client, {time.monotonic() - began:.0f} s later; the key"
    demo.tell(what, state, expected="succeeded")
    answer = demo.charge(key, 1200)
    demo.tell("      and if the client does come back", answer, expected="201 replayed")
    demo.tell_ledger()


def a_failed_commit(demo: Demo) -> None:
    key, before = _key(), demo.balance()
    answer = demo.transfer(key, 1000, fault="commit")
    demo.tell("7. A transfer of 10.00 EUR whose COMMIT fails", answer, expected="500")
    demo.tell_balance(before, spent=0)
    demo.tell("      sent again", demo.transfer(key, 1000), expected="201")
    demo.tell("      and again", demo.transfer(key, 1000), expected="201 replayed")
    demo.tell_balance(before, spent=1000)
    demo.tell_ledger()


def a_client_that_repeats(demo: Demo) -> None:
    headers = demo.authorization | {"X-Demo-Fault": "kill@committed"}
    with SafeClient(demo.url, headers=headers) as client:
        answer = client.post("/v1/charges", json=_charge(800, "tok_visa"), idempotency_key=_key())
    what = "8. The server dies before it answers; SafeClient hears"
    demo.tell(what, _in_words(answer), expected="201 replayed")
    demo.tell_ledger(800)


STORIES: tuple[Callable[[Demo], None], ...] = (
    a_charge,
    a_lost_answer,
    a_double_click,
    another_amount,
    a_decline,
    a_killed_worker,
    a_failed_commit,
    a_client_that_repeats,
)


def main() -> int:
    try:
        stack = json.loads((DATA / "stack.json").read_text())
        demo = Demo(stack)
    except (FileNotFoundError, httpx2.TransportError):
        print("No stack is running: start one with `make run`, and repeat this beside it.")
        return 1
    print(f"One key, one effect: {demo.url}, gateway {demo.gateway}\n")
    for story in STORIES:
        story(demo)
    if demo.differing:
        print(f"\n{demo.differing} of {demo.lines} lines are not as they should be.")
        return 1
    print("\nEverything is as it should be.")
    return 0


def _in_words(answer: httpx2.Response) -> str:
    words = [str(answer.status_code)]
    if answer.headers.get("Content-Type") == "application/problem+json":
        words.append(answer.json()["code"])
    if answer.headers.get("Idempotent-Replayed") == "true":
        words.append("replayed")
    return " ".join(words)


def _key() -> str:
    return f"demo-{secrets.token_hex(8)}"


def _charge(amount: int, source: str) -> dict[str, Any]:
    return {"amount": amount, "currency": "EUR", "source": source}


def _movements(amounts: Sequence[int]) -> str:
    if not amounts:
        return "nothing new"
    charges = "charge" if len(amounts) == 1 else "charges"
    return f"{len(amounts)} new {charges}, {sum(amounts) / 100:.2f} EUR"


def _spent(amount: int) -> str:
    return f"{amount / 100:.2f} EUR less" if amount else "unchanged"


if __name__ == "__main__":
    sys.exit(main())
