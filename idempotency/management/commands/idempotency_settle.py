from __future__ import annotations

import shlex
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from idempotency import doubts, enquiry
from idempotency.approvals import AlreadyProposed, Person, stake_of
from idempotency.definitions import Outcome
from idempotency.doubts import Ending
from idempotency.enquiry import (
    WORDS,
    CannotSettle,
    Contradicted,
    Told,
    TooEarly,
    record_of,
    shown,
)
from idempotency.kept import Kept
from idempotency.management import open_key
from idempotency.management.key_report import KeyReport
from idempotency.management.report_command import NOTHING, ReportCommand, span
from idempotency.models import Choice
from idempotency.operators import Seen
from idempotency.story import outcome_in_words

T = TypeVar("T")

ANSWERED = "answered"
_CHOICES = {
    "succeeded": Choice.SUCCEEDED,
    "refused": Choice.REFUSED,
    "never-happened": Choice.NEVER_HAPPENED,
}


class Command(ReportCommand):
    help = (
        "Settle an operation whose outcome is open. Asks the other side and says what it would do; "
        "does it with --yes. Above FOUR_EYES_ABOVE it proposes it, and somebody approves in the "
        "admin. Exit codes: 0 done, proposed or said, 1 no such open operation, 3 it changed "
        "meanwhile, 4 the other side says otherwise, or something more has to be said."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        open_key.add_arguments(parser)
        parser.add_argument(
            "--as",
            dest="choice",
            required=True,
            choices=(ANSWERED, *_CHOICES),
            help="How it ended; answered: as the other side answers, or not at all.",
        )
        parser.add_argument(
            "--their-record",
            type=open_key.text(255),
            help="The other side's id of what it did, or the code that it refused with; by default "
            "as it answers.",
        )
        parser.add_argument(
            "--against",
            metavar="ANSWER",
            help="Although the other side says ANSWER, or a call may still be on its way: as the "
            "refusal has named it.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        report = open_key.chosen(options, self.alias(options))
        if not report.key.recovery_point:
            words = "It never passed a recovery point: there is no outside call to settle."
            raise CommandError(words, returncode=NOTHING)
        tell = self._said if not options["yes"] else self._done
        _or_refused(lambda: tell(report, options))

    def _said(self, report: KeyReport, options: dict[str, Any]) -> None:
        """Ask, and say what would be written."""
        key = report.key
        kept = Kept.read(key.context)
        answer = enquiry.ask(kept)
        if options["choice"] != ANSWERED:
            enquiry.find(kept, _told(options), answer, key)
        self._tell(report, options, answer, "Nothing was written.")

    def _done(self, report: KeyReport, options: dict[str, Any]) -> None:
        key, person = report.key, Person(options["actor"])
        seen, using = Seen.of(key), key._state.db
        if options["choice"] == ANSWERED:
            asked = doubts.ask_again(
                key.pk, seen=seen, person=person, reason=options["reason"], using=using
            )
            if asked is None:
                raise open_key.changed(report)
            what = f"Settled: {asked.ending}." if asked.ending else "Nothing follows from that yet."
            self._tell(report, options, asked.answer, what, done=asked.ending is not None)
            return
        ending = doubts.decide(key.pk, seen=seen, told=_told(options), person=person, using=using)
        if ending is Ending.CHANGED:
            raise open_key.changed(report)
        proposed = ending is Ending.PROPOSED
        what = "Proposed: another person approves in the admin." if proposed else "Settled."
        self._tell(report, options, None, what, done=not proposed, proposed=proposed)

    def _tell(
        self,
        report: KeyReport,
        options: dict[str, Any],
        answer: Outcome | None,
        what: str,
        *,
        done: bool = False,
        proposed: bool = False,
    ) -> None:
        data = {
            "done": done,
            "proposed": proposed,
            "choice": options["choice"],
            "answer": None if answer is None else WORDS[type(answer)],
            "their_record": "" if answer is None else record_of(answer),
            "amount": str(stake_of(report.key)),
            "two_people": stake_of(report.key).two_people,
            "owner": report.key.owner,
            "record": report.key.pk,
        }
        lines = _lines(report, options, answer, what)
        self.tell(options["json"], data, lines)


def _told(options: dict[str, Any]) -> Told:
    choice = _CHOICES[options["choice"]]
    record = options["their_record"] or ""
    return Told(choice, options["reason"], record, options["against"] or "")


def _lines(
    report: KeyReport, options: dict[str, Any], answer: Outcome | None, what: str
) -> Iterator[str]:
    yield report.title
    stake = stake_of(report.key)
    yield f"  {report.standing}{f', about {stake}' if stake.amount else ''}"
    if answer is not None:
        yield f"  {outcome_in_words(answer)}"
    if not options["yes"]:
        do = "proposed to be settled" if stake.two_people else "settled"
        yield f"  It would be {do} as {options['choice']}, by {options['actor']}."
    yield what
    if not options["yes"]:
        yield f"Repeat with --yes --owner {report.key.owner} to do it."


def _knowing(error: Contradicted | TooEarly) -> str:
    return f"--against {shlex.quote(shown(error.answer))} does it so."


def _or_refused(work: Callable[[], T]) -> T:
    """Do it, or say what it takes."""
    try:
        return work()
    except Contradicted as error:
        words = f"The other side says otherwise. {outcome_in_words(error.answer)} {_knowing(error)}"
    except TooEarly as error:
        words = f"For {span(error.left)} a call may still be on its way. {_knowing(error)}"
    except CannotSettle as error:
        more = "Say --their-record." if error.by_hand else "It takes the other side's own answer."
        words = f"{outcome_in_words(error.answer)} {more}"
    except AlreadyProposed:
        words = "There is a proposal already: approve or reject that in the admin first."
    except ImproperlyConfigured as error:
        words = f"This process cannot finish it. {error}"
    raise CommandError(f"{words} Nothing was written.", returncode=open_key.REFUSED)
