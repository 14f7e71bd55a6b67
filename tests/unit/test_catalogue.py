"""The catalogue for translators holds every text of the app."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[2] / "idempotency"
CATALOGUE = Path("locale/en/LC_MESSAGES/django.po")


def messages(catalogue: Path) -> set[str]:
    blocks = re.findall(r'^msgid(?:_plural)? ((?:".*"\n)+)', catalogue.read_text(), re.M)
    return {"".join(ast.literal_eval(line) for line in block.splitlines()) for block in blocks}


@pytest.mark.skipif(not shutil.which("xgettext"), reason="gettext is not installed")
def test_the_catalogue_has_every_text_and_no_other(tmp_path: Path) -> None:
    copy = tmp_path / "idempotency"
    shutil.copytree(APP, copy, ignore=shutil.ignore_patterns("locale", "__pycache__"))
    (copy / "locale").mkdir()
    command = [sys.executable, "-m", "django", "makemessages", "--locale", "en"]
    # Without settings it reads the files and nothing else.
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(command, cwd=copy, env=env, check=True, capture_output=True)
    texts = messages(copy / CATALOGUE)
    assert len(texts) > 100
    assert messages(APP / CATALOGUE) == texts, "run `make messages`"


def test_the_texts_that_people_decide_by_are_in_the_catalogue() -> None:
    known = messages(APP / CATALOGUE)
    assert "A retry with the same request gets the stored %d, byte for byte." in known
    assert "What a retry gets now" in known
    assert "Force-failed %d keys." in known
