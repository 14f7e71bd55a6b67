"""Whether everybody's books and ears agree. Pure: it looks at the facts, and at nothing else.

==================  ================================================================================
rule                what it says
==================  ================================================================================
one effect          under one key the gateway moved money once at most, and so did our ledger
books agree         the gateway's movements are those of ours that succeeded, and each is posted
answers agree       every final answer of a key is the same, and the one that is kept
answer tells        201: it happened; a refusal: it did not
settled             no key is left running, in doubt, or failed with an effect; whoever came back
                    has an answer
other request       under a key that is used it is never answered as if it were the first
ended for good      410 and nothing else; before the recovery point nothing happened. Behind it the
                    gateway may have moved the money, once, and ours stays pending: "its effect may
                    have happened", until somebody settles it
no 500              whatever is broken; but for a commit that its own request has had refused
lease               nobody took a key over before the lease of its owner was over
sums                every transaction and every currency sums to zero, every balance to its entries
==================  ================================================================================
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from tests.chaos.answers import ENDED_BY_OPERATOR
from tests.chaos.facts import TRANSFER, Answer, Case, Facts, Moved, Movement, Row, cases

#: Seconds by which a takeover may seem early: two clocks reads of one server.
TOLERANCE = 0.1
#: What ends an attempt before its lease does.
_ENDS = frozenset({"suspended", "force_failed", "resolved", "in_doubt", "withdrawn", "reclaimed"})
#: What each status of a movement is posted as.
_POSTED = {
    ("charge", "pending"): [],
    ("charge", "succeeded"): ["charge"],
    ("charge", "declined"): [],
    ("charge", "withdrawn"): [],
    ("refund", "pending"): ["refund_hold"],
    ("refund", "succeeded"): ["refund_hold", "refund_settlement"],
    ("refund", "failed"): ["refund_hold", "refund_return"],
    ("refund", "withdrawn"): ["refund_hold", "refund_return"],
    ("transfer", "succeeded"): ["transfer"],
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing that must not be; ``key`` is empty where it is about no single one."""

    rule: str
    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.key or 'no single key'}: {self.text}"


def check(facts: Facts) -> list[Violation]:
    """Everything that is wrong."""
    found: list[Violation] = []
    for case in cases(facts):
        for rule, look in _RULES.items():
            found += [Violation(rule, case.key, text) for text in look(case)]
        for row in case.rows:
            found += [Violation("lease", case.key, it) for it in early_takeovers(row, facts.lease)]
    found += [Violation("books agree", "", text) for text in strangers(facts)]
    found += [Violation("sums", "", text) for text in sums(facts)]
    return found


def one_effect(case: Case) -> Iterator[str]:
    if len(case.rows) > 1:
        yield f"{len(case.rows)} rows bear this key"
    if len(case.moved) > 1:
        yield f"the gateway moved money {len(case.moved)} times: {_ids(case.moved)}"
    there = [it for it in case.movements if it.status in ("pending", "succeeded")]
    if len(there) > 1:
        yield f"{len(there)} movements of ours: {', '.join(it.public_id for it in there)}"
    posted = Counter(it.kind for it in case.postings)
    for kind in ("charge", "transfer", "refund_settlement"):
        if posted[kind] > 1:
            yield f"our ledger has {posted[kind]} postings of kind {kind}"


def books_agree(case: Case) -> Iterator[str]:
    theirs = {it.reference: it for it in case.moved}
    posted: defaultdict[str, list[str]] = defaultdict(list)
    for posting in case.postings:
        posted[posting.movement].append(posting.kind)
    for ours in case.movements:
        if sorted(posted[ours.public_id]) != _POSTED[ours.kind, ours.status]:
            kinds = ", ".join(posted[ours.public_id]) or "nothing"
            yield f"{ours.public_id} is {ours.status} and posted as {kinds}"
        if ours.kind == TRANSFER:
            continue
        entry = theirs.get(ours.public_id)
        if (entry is not None) != (ours.status == "succeeded"):
            if not (case.left_open and ours.status == "pending"):
                there = "moved" if entry else "did not move"
                yield f"{ours.public_id} is {ours.status} here; the gateway {there} the money"
        elif entry is not None and (entry.id, entry.amount, entry.currency) != _told(ours):
            yield f"{ours.public_id} is {_told(ours)} here; the gateway has {entry}"


def answers_agree(case: Case) -> Iterator[str]:
    if case.client is None:
        return
    finals = case.client.finals()
    if len(prints := {it.print for it in finals}) > 1:
        yield f"{len(prints)} different final answers: {', '.join(_words(it) for it in finals)}"
    if not finals:
        return
    row = case.row
    if row is None or row.state != "succeeded" or row.kept is None:
        yield f"its client has {_words(finals[0])}; the key is {row.state if row else 'not there'}"
    elif row.kept.print not in prints:
        yield f"its client has {_words(finals[0])}; kept is {_words(row.kept)}"


def answer_tells(case: Case) -> Iterator[str]:
    told = case.client.finals() if case.client else []
    kept = [case.row.kept] if case.row and case.row.kept else []
    done = {it.public_id for it in case.movements if it.status == "succeeded"}
    for answer in dict.fromkeys([*told, *kept]):
        if answer.status == 201 and answer.resource not in done:
            yield f"201 with {answer.resource}, which did not happen"
        if answer.status != 201 and (done or case.moved) and not case.left_open:
            yield f"{_words(answer)}, and it did happen: {', '.join(done) or _ids(case.moved)}"


def settled(case: Case) -> Iterator[str]:
    row = case.row
    if row is not None and row.state in ("processing", "in_doubt"):
        yield f"the key is {row.state}"
    if row is not None and row.state == "failed":
        standing = [it.public_id for it in case.movements if it.status == "succeeded"]
        if standing or case.moved:
            yield f"the key failed, and it did happen: {', '.join(standing) or _ids(case.moved)}"
    for movement in case.movements:
        if movement.status == "pending" and not case.left_open:
            yield f"{movement.public_id} is pending"
    client = case.client
    if client is not None and client.returns and not client.finals():
        heard = ", ".join(_words(it) for it in client.answers) or "nothing"
        yield f"its client came back until the end, and heard {heard}"


def other_request(case: Case) -> Iterator[str]:
    for answer in case.client.answers if case.client else ():
        if answer.other and answer.final:
            yield f"another request under this key got {_words(answer)}"


def ended_for_good(case: Case) -> Iterator[str]:
    for row in case.rows:
        if not row.ended_for_good:
            continue
        told = [it for it in (row.kept, *(case.client.finals() if case.client else ())) if it]
        for answer in told:
            if answer.code != ENDED_BY_OPERATOR:
                yield f"an operator ended it for good, and it answers {_words(answer)}"
        if not row.recovery_point and (case.moved or _standing(case)):
            yield "an operator ended it before its recovery point, and it did happen"


def no_500(case: Case) -> Iterator[str]:
    for answer in case.client.answers if case.client else ():
        if answer.status == 500 and case.client and case.client.fault != "commit":
            yield f"its client heard {_words(answer)}"


def early_takeovers(row: Row, lease: float) -> Iterator[str]:
    """An attempt's beginning is known of the first, and of those that took over."""
    begun = {1: row.created}
    for event in row.events:
        if event.kind in _ENDS:
            begun.pop(event.attempt, None)
        if event.kind != "takeover":
            continue
        since = begun.get(event.attempt - 1)
        if since is not None and event.at - since < lease - TOLERANCE:
            yield (
                f"attempt {event.attempt} took over {event.at - since:.3f} s after attempt"
                f" {event.attempt - 1} began; the lease is {lease:g} s"
            )
        begun[event.attempt] = event.at


def strangers(facts: Facts) -> Iterator[str]:
    """What moved for nobody."""
    rows = {row.id for row in facts.rows}
    known = {it.public_id for it in facts.movements}
    for movement in facts.movements:
        if movement.key_id not in rows:
            yield f"{movement.public_id} belongs to key {movement.key_id}, which is not there"
    for entry in facts.moved:
        if entry.reference not in known:
            yield f"the gateway moved {entry.id} for {entry.reference}, which is not ours"


def sums(facts: Facts) -> Iterator[str]:
    transactions: Counter[tuple[int, str]] = Counter()
    currencies: Counter[str] = Counter()
    accounts: Counter[int] = Counter()
    for line in facts.lines:
        transactions[line.transaction, line.currency] += line.amount
        currencies[line.currency] += line.amount
        accounts[line.account] += line.amount
    for (transaction, currency), total in transactions.items():
        if total:
            yield f"transaction {transaction} sums to {total} {currency}"
    for currency, total in currencies.items():
        if total:
            yield f"all entries in {currency} sum to {total}"
    for account, balance in facts.balances.items():
        if balance != accounts[account]:
            yield f"account {account} has {balance}; its entries sum to {accounts[account]}"


def _standing(case: Case) -> list[Movement]:
    return [it for it in case.movements if it.status in ("pending", "succeeded")]


def _told(movement: Movement) -> tuple[str, int, str]:
    return movement.gateway_reference, movement.amount, movement.currency


def _ids(moved: Iterable[Moved]) -> str:
    return ", ".join(it.id for it in moved)


def _words(answer: Answer) -> str:
    return " ".join(filter(None, (str(answer.status), answer.code or answer.resource)))


_RULES: dict[str, Callable[[Case], Iterator[str]]] = {
    "one effect": one_effect,
    "books agree": books_agree,
    "answers agree": answers_agree,
    "answer tells": answer_tells,
    "settled": settled,
    "other request": other_request,
    "ended for good": ended_for_good,
    "no 500": no_500,
}
