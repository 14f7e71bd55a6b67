"""Looks that stop waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from idempotency.observability.looks import Look, NoAnswer

#: Seconds in which a thread of this process certainly answers.
ENOUGH = 20.0


@pytest.fixture
def silence() -> Iterator[threading.Event]:
    """What somebody waits for who hangs; set at the end, so that nobody hangs on."""
    event = threading.Event()
    yield event
    event.set()


def test_the_answer_is_the_questions_own() -> None:
    assert Look(ENOUGH).at(lambda: 42) == 42


@pytest.mark.parametrize("error", [ValueError, TimeoutError])
def test_so_is_what_it_raises(error: type[Exception]) -> None:
    def ask() -> None:
        raise error("its own")

    with pytest.raises(error, match="its own"):
        Look(ENOUGH).at(ask)


def test_a_question_that_hangs_is_not_waited_for(silence: threading.Event) -> None:
    with pytest.raises(NoAnswer):
        Look(0.01).at(silence.wait)


def test_while_one_hangs_no_other_is_asked(silence: threading.Event) -> None:
    look, asked = Look(0.01), []
    with pytest.raises(NoAnswer):
        look.at(silence.wait)
    with pytest.raises(NoAnswer):
        look.at(lambda: asked.append(1))
    assert asked == []


def test_once_it_has_answered_the_next_one_is_asked(silence: threading.Event) -> None:
    look = Look(0.01)
    with pytest.raises(NoAnswer):
        look.at(silence.wait)
    silence.set()
    look._seconds = ENOUGH
    assert look.at(lambda: 42) == 42
