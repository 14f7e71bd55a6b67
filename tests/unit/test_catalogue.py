"""The catalogues for translators hold every text of the app, and each has a German one."""

from __future__ import annotations

import ast
import gettext
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[2] / "idempotency"
ENGLISH = Path("locale/en/LC_MESSAGES/django.po")
GERMAN = Path("locale/de/LC_MESSAGES/django.po")


@dataclass(frozen=True)
class Entry:
    """One text of a catalogue."""

    text: str
    #: Of several; empty where there is no such form.
    plural: str
    #: One for each form; empty where the text is not translated.
    translations: tuple[str, ...]
    fuzzy: bool

    def forms(self) -> Iterator[tuple[str, str]]:
        """Each translation there is, with the text it is one of."""
        forms = zip((self.text, self.plural), self.translations, strict=False)
        yield from (form for form in forms if all(form))


def entries(catalogue: Path) -> list[Entry]:
    # The first block is the header.
    return [_entry(block) for block in catalogue.read_text().split("\n\n")[1:]]


def _entry(block: str) -> Entry:
    fields = {
        name: "".join(ast.literal_eval(line) for line in lines.splitlines())
        for name, lines in re.findall(r'^(msg\S+) ((?:".*"\n?)+)', block, re.M)
    }
    translations = tuple(text for name, text in fields.items() if name.startswith("msgstr"))
    fuzzy = re.search(r"^#, .*\bfuzzy\b", block, re.M) is not None
    return Entry(fields["msgid"], fields.get("msgid_plural", ""), translations, fuzzy)


def messages(catalogue: Path) -> set[tuple[str, str]]:
    return {(entry.text, entry.plural) for entry in entries(catalogue)}


@pytest.mark.skipif(not shutil.which("xgettext"), reason="gettext is not installed")
def test_the_catalogue_has_every_text_and_no_other(tmp_path: Path) -> None:
    copy = tmp_path / "idempotency"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    command = [sys.executable, "-m", "django", "makemessages", "--locale", "en"]
    # Without settings it reads the files and nothing else.
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(command, cwd=copy, env=env, check=True, capture_output=True)
    texts = messages(copy / ENGLISH)
    assert len(texts) > 100
    assert messages(APP / ENGLISH) == texts, "run `make messages`"


def test_no_text_stands_within_an_f_string() -> None:
    """The extractor does not look there, so nobody would translate it."""
    hidden = [
        f"{path.relative_to(APP)}:{call.lineno}"
        for path in APP.rglob("*.py")
        for string in ast.walk(ast.parse(path.read_text()))
        if isinstance(string, ast.JoinedStr)
        for call in ast.walk(string)
        if isinstance(call, ast.Call) and getattr(call.func, "id", "") in ("_", "ngettext")
    ]
    assert hidden == []


def test_the_texts_that_people_decide_by_are_in_the_catalogue() -> None:
    known = {text for forms in messages(APP / ENGLISH) for text in forms}
    assert "A retry with the same request gets the stored %d, byte for byte." in known
    assert "What a retry gets now" in known
    assert "Force-failed %d keys." in known


def test_every_text_has_a_german_translation() -> None:
    german = entries(APP / GERMAN)
    assert messages(APP / GERMAN) == messages(APP / ENGLISH), "run `make messages`"
    missing = [entry.text for entry in german if entry.fuzzy or not all(entry.translations)]
    assert missing == [], f"translate in {GERMAN}, then run `make messages`"
    wrong = [entry.text for entry in german if len(entry.translations) != 1 + bool(entry.plural)]
    assert wrong == []


def test_translations_keep_what_is_filled_in_and_what_programs_read() -> None:
    for entry in entries(APP / GERMAN):
        for text, translation in entry.forms():
            # Of one thing a text may leave the number out.
            left_out = entry.plural and text == entry.text
            assert placeholders(translation) <= placeholders(entry.plural or text), translation
            assert left_out or placeholders(translation) == placeholders(text), translation
            assert positional(translation) == positional(text), translation
            assert codes(translation) == codes(text), translation


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)[sd]", text))


def positional(text: str) -> list[str]:
    return re.findall(r"%[sd]", text)


def codes(text: str) -> list[str]:
    """Status codes, problem codes, names of commands: the same in every language."""
    return sorted(
        re.findall(r"\b(?:[1-5]\d\d|[a-z]+(?:_[a-z]+)+)\b", re.sub(r"%\(\w+\)", "", text))
    )


def test_the_compiled_catalogue_is_the_written_one() -> None:
    with (APP / GERMAN).with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for entry in entries(APP / GERMAN):
        if not all(entry.translations) or entry.fuzzy:
            continue
        if entry.plural:
            found = tuple(compiled.ngettext(entry.text, entry.plural, count) for count in (1, 2))
        else:
            found = (compiled.gettext(entry.text),)
        assert found == entry.translations, "run `make messages`"
