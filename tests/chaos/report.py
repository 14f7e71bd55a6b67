"""What a run came to: a table, and the story of the first key that something is wrong with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.checker import Violation
from tests.chaos.facts import Facts, Traffic, cases
from tests.chaos.history import read

#: Seconds around a key's own events in which faults belong to its story.
NEAR = 8.0
#: Violations that are printed.
SHOWN = 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run, checked."""

    seed: int
    seconds: float
    facts: Facts
    traffic: Traffic
    faults: Counter[str]
    quiet: float
    violations: list[Violation]


def table(outcome: Outcome) -> str:
    """Faults by kind, then what there was of everything."""
    facts, traffic = outcome.facts, outcome.traffic
    events = Counter(event.kind for row in facts.rows for event in row.events)
    lines = [f"seed {outcome.seed}, {outcome.seconds:.0f} s, then {outcome.quiet:.0f} s of quiet"]
    lines += ["", "faults injected"]
    faults = outcome.faults + Counter(
        {f"at a named point: {name}": number for name, number in traffic.asked_faults.items()}
    )
    lines += _counted(sorted(faults.items()))
    lines += [f"  {'in all':<38}{sum(faults.values()):>8}", "", "traffic"]
    lines += _counted(_traffic(outcome, events))
    lines += ["", "answers"]
    lines += _counted(traffic.answered.most_common())
    lines += ["", "keys"]
    lines += _counted(Counter(_state(row.state) for row in facts.rows).most_common())
    lines += ["", "written in the stories of keys"]
    lines += _counted(events.most_common())
    lines += ["", "violations"]
    lines += _counted(Counter(it.rule for it in outcome.violations).most_common() or [("none", 0)])
    return "\n".join(lines)


def _traffic(outcome: Outcome, events: Counter[str]) -> list[tuple[str, float]]:
    facts, traffic = outcome.facts, outcome.traffic
    return [
        ("keys", len(traffic.clients)),
        ("keys a second", round(len(traffic.clients) / outcome.seconds, 1)),
        ("requests", traffic.requests),
        ("retries", traffic.retries),
        ("requests without an answer", traffic.unanswered.total()),
        ("replays", traffic.replays),
        ("takeovers", events["takeover"]),
        ("reclaimed by the job", events["reclaimed"]),
        ("movements of ours", len(facts.movements)),
        ("movements of the gateway", len(facts.moved)),
        ("ended by an operator", events["force_failed"]),
        ("of them left open with the gateway", sum(case.left_open for case in cases(facts))),
    ]


def _state(state: str) -> str:
    return state.replace("_", " ")


def _counted(found: Iterable[tuple[str, float]]) -> list[str]:
    return [f"  {name:<38}{number:>8}" for name, number in found]


def story(outcome: Outcome, history: Path) -> Iterator[str]:
    """The first violation's key, event by event, with the faults around it."""
    first = next((it for it in outcome.violations if it.key), outcome.violations[0])
    yield f"seed {outcome.seed}: {len(outcome.violations)} violations"
    yield from (f"  {it}" for it in outcome.violations[:SHOWN])
    yield ""
    yield f"the story of {first.key or 'no single key'}"
    if first.key:
        yield from _told(history, first.key)
        yield from _books(outcome.facts, first.key)


def _told(history: Path, key: str) -> Iterator[str]:
    own = [event["t"] for event in read(history) if event["key"] == key]
    if not own:
        return
    begin, end = own[0] - NEAR, own[-1] + 1
    for event in read(history):
        fault = event["event"] in ("fault", "fault_done", "died", "desk") and not event["key"]
        if event["key"] == key or (fault and begin <= event["t"] <= end):
            about = {k: v for k, v in event.items() if k not in ("t", "key", "event")}
            mark = " " if event["key"] == key else "*"
            words = " ".join(f"{name}={value}" for name, value in about.items())
            yield f" {mark}{event['t']:10.3f} {event['event']:<10} {words}"[:400]


def _books(facts: Facts, key: str) -> Iterator[str]:
    yield "the books"
    for case in cases(facts):
        if case.key == key:
            for thing in (*case.rows, *case.movements, *case.postings, *case.moved):
                yield f"  {thing}"
