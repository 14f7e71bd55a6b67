"""The README does what it says: its code runs as a project, its tables are the code's own."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from idempotency.conf import DEFAULTS
from idempotency.core.errors import CATALOGUE
from idempotency.core.states import State
from idempotency.http.problems import PROBLEMS
from idempotency.http.requests import POLICY_NAMES
from tests.acceptance.product import Product

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()

SETTINGS = """
SECRET_KEY = "of the README's project"
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "urls"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "project.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE"},
    }
}
REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
}
"""

OPERATION_TEST = """
def test_the_operation_of_the_readme_runs_once(client):
    def invite():
        return client.post("/invitations", {"name": "ops"}, headers={"Idempotency-Key": "i-1"})

    with assert_runs_once(Group.objects.all()):
        first, second = invite(), invite()
    assert first.status_code == 201
    assert_replayed(second, of=first)
"""

INVITATION_VIEW = """
from operations import InviteTeam


class InvitationView(IdempotencyMixin, APIView):
    def post(self, request):
        return InviteTeam()
"""

ROADS_TEST = """
import pytest
from django.contrib.auth.models import Group
from django.db import transaction
from roads import audit, open_team, team_was_sold

import outbox  # as an app's module of that name would be imported
from idempotency.outbox.dispatcher import Dispatcher
from idempotency.testing import assert_runs_once


def test_the_outbox_of_the_readme_sends_what_was_committed(capsys):
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        open_team("never")
        1 / 0
    open_team("ops")
    assert Dispatcher(threads=0).run().delivered == 1
    assert "{'opened': 'ops'}" in capsys.readouterr().out


def test_the_inbox_of_the_readme_acts_once():
    event = {"id": "evt_1", "team": "ops"}
    Group.objects.create(name="ops")
    assert [team_was_sold(event) for _ in range(3)] == [{"teams": 1}] * 3
    assert not Group.objects.exists()


def test_the_task_of_the_readme_runs_once():
    with assert_runs_once(Group.objects.all()):
        first, second = (audit.apply(args=["ops"]).get() for _ in range(2))
    assert first == second
"""

DECORATED_VIEW = """
from django.http import JsonResponse
from idempotency.http.decorators import idempotent


@idempotent(required=True)
def plain(request):
    return JsonResponse({"id": Group.objects.create(name="plain").pk}, status=201)
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def rows(start: str) -> list[list[str]]:
    """The cells of the first table at or below a line that starts so, without its header."""
    lines = README[README.index(start) :].splitlines()
    below = itertools.dropwhile(lambda line: not line.startswith("|"), lines)
    table = itertools.takewhile(lambda line: line.startswith("|"), below)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table][2:]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project made of the README's blocks, each under the file name in its first line."""
    folder = tmp_path_factory.mktemp("project")
    files: dict[str, str] = {"settings.py": SETTINGS}
    for block in blocks("python"):
        name = re.match(r"# ([\w/]+\.py)\n", block)
        assert name, f"a block of the README names no file:\n{block}"
        files[name[1]] = files.get(name[1], "") + block
    files["views.py"] += INVITATION_VIEW + DECORATED_VIEW
    files["urls.py"] += (
        "\nfrom throttled import OrderView\nfrom views import InvitationView, plain\n"
        'urlpatterns += [path("invitations", InvitationView.as_view()), path("plain", plain)]\n'
        'urlpatterns += [path("orders", OrderView.as_view())]\n'
    )
    files["test_teams.py"] += OPERATION_TEST
    files["test_roads.py"] = ROADS_TEST
    files["conftest.py"] = (
        "import pytest\n\n\n@pytest.fixture(autouse=True)\ndef _database(db):\n    pass\n"
    )
    for file, text in files.items():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text(text)
    return folder


def run(project: Path, *arguments: str) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DJANGO", "PYTEST", "DATABASE", "COV"))
    }
    environment |= {
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": f"{project}{os.pathsep}{ROOT}",
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_code_of_the_readme_runs_and_protects(project: Path) -> None:
    output = run(project, "-m", "pytest", "-q", "--rootdir", str(project), "-p", "no:cacheprovider")
    assert "5 passed" in output


def test_the_project_of_the_readme_passes_its_checks(project: Path) -> None:
    run(project, "-m", "django", "migrate", "--verbosity", "0")
    output = run(project, "-m", "django", "check", "--fail-level", "WARNING")
    assert "no issues" in output


def test_the_schedule_of_the_readme_has_every_job(project: Path) -> None:
    code = (
        "import django; django.setup(); from project.celery import app; "
        "print(*app.conf.beat_schedule)"
    )
    output = run(project, "-c", code).split()
    jobs = [quoted(row[0])[0] for row in rows("| job | what it does |")]
    assert sorted(output) == sorted(f"idempotency.{job}" for job in jobs)


def test_the_client_of_the_readme_charges_the_product_once(project: Path, product: Product) -> None:
    code = "import sys; from pay import pay; print(pay(*sys.argv[1:4], amount=1999))"
    arguments = ("-c", code, product.url, "sk_test_acme", "order-1")

    first, second = run(project, *arguments), run(project, *arguments)

    assert first == second
    assert first.startswith("ch_")


def test_the_settings_table_lists_every_setting() -> None:
    listed = [quoted(row[0])[0] for row in rows("One dict; an unknown name is an error")]
    assert sorted(listed) == sorted(DEFAULTS)


def test_the_options_table_lists_every_option_of_a_view() -> None:
    listed = [name for row in rows("## Options of a view") for name in quoted(row[0])]
    assert sorted(listed) == sorted(POLICY_NAMES)


def test_the_states_table_lists_every_state() -> None:
    listed = [quoted(row[0])[0] for row in rows("| state | what it means |")]
    assert listed == [state.value for state in State]


def test_the_table_of_answers_lists_every_problem_with_its_status() -> None:
    listed = {
        code: (int(row[1]), quoted(row[2])[0])
        for row in rows("## Answers")
        for code in quoted(row[0])
    }
    assert listed == {error.code: (PROBLEMS[error][0], error.retry) for error in CATALOGUE}


def test_the_commands_of_the_readme_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", README, re.MULTILINE))
    assert {"run", "test", "demo"} <= named <= targets


def test_the_pictures_of_the_readme_exist() -> None:
    for picture in re.findall(r"!\[[^]]*\]\(([^)]+)\)", README):
        assert (ROOT / picture).is_file(), picture
