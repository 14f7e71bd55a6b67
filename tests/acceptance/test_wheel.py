"""The wheel: what is in it, and that a blank project needs nothing else.

Its dependencies come from the packages of this environment, so that no index is asked: exactly
those that the wheel's metadata names, and `pip check` has to agree.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]

PLAIN_VIEW = """\
from django.contrib.auth.models import Group
from django.http import JsonResponse

from idempotency.http.decorators import idempotent


@idempotent(required=True)
def teams(request):
    team = Group.objects.create(name=request.POST["name"])
    return JsonResponse({"id": team.pk}, status=201)
"""
REST_VIEW = """\
from django.contrib.auth.models import Group
from rest_framework.response import Response
from rest_framework.views import APIView

from idempotency.rest_framework import IdempotencyMixin


class Teams(IdempotencyMixin, APIView):
    def post(self, request):
        return Response({"id": Group.objects.create(name=request.data["name"]).pk}, status=201)


teams = Teams.as_view()
"""
SETTINGS = """
INSTALLED_APPS += ["idempotency"]
DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
ALLOWED_HOSTS = ["testserver"]
"""
URLS = """
from blank.views import teams

urlpatterns += [path("teams", teams)]
"""
CALLS = """
import json
import django

django.setup()
from django.contrib.auth.models import Group
from django.test import Client

answers = [
    Client().post("/teams", {"name": name}, headers={"Idempotency-Key": key})
    for name, key in [("ops", "k-1"), ("ops", "k-1"), ("dev", "k-1"), ("dev", "k-2")]
]
print(json.dumps({
    "statuses": [answer.status_code for answer in answers],
    "bodies": [answer.content.decode() for answer in answers],
    "replayed": [answer.headers.get("Idempotent-Replayed") for answer in answers],
    "teams": sorted(Group.objects.values_list("name", flat=True)),
}))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as a release is."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), cwd=ROOT)
    (built,) = folder.glob("*.whl")
    return built


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command without the environment of the tests; its output."""
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def needed(requirements: Iterable[str], extras: set[str]) -> Iterator[str]:
    """The names of the distributions that these requirements lead to."""
    for requirement in map(Requirement, requirements):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": it}) for it in extras | {""}):
            yield requirement.name
            yield from needed(metadata.requires(requirement.name) or [], requirement.extras)


def link_distribution(name: str, site: Path) -> None:
    """Let the folder have what an installed distribution put beside the others."""
    distribution = metadata.distribution(name)
    places = {file.parts[0] for file in distribution.files or []}
    for place in places - {"..", "__pycache__"}:  # its scripts are outside
        if not (site / place).exists():
            (site / place).symlink_to(Path(str(distribution.locate_file(place))))


def install(wheel: Path, venv: Path, extras: set[str]) -> Path:
    """Make a blank environment that holds the wheel and what it asks for; its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    python = venv / "bin" / "python"
    printed = run(python, "-c", "import site; print(site.getsitepackages()[0])", cwd=venv)
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        requirements = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    for distribution in set(needed(requirements, extras)):
        link_distribution(distribution, Path(printed.strip()))
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--no-index", "--no-deps", wheel, cwd=venv)
    run(*pip, "check", cwd=venv)
    return python


def test_the_wheel_holds_the_package_idempotency_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    places = {name.split("/")[0] for name in names}
    assert {place for place in places if not place.endswith(".dist-info")} == {"idempotency"}
    # What is no Python comes along: SQL, templates, translations, the mark of a typed package.
    packed = {name for name in names if name.startswith("idempotency/")}
    files = {path for path in (ROOT / "idempotency").rglob("*") if path.is_file()}
    assert packed == {
        path.relative_to(ROOT).as_posix() for path in files if path.parent.name != "__pycache__"
    }


def test_the_source_distribution_holds_no_part_of_the_product(wheel: Path) -> None:
    (archive,) = wheel.parent.glob("*.tar.gz")
    listing = run("tar", "-tzf", archive, cwd=wheel.parent).splitlines()
    assert {name.split("/")[1] for name in listing} == {
        *("idempotency", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"),
        *("PKG-INFO", ".gitignore"),
    }


@pytest.mark.parametrize(
    ("extras", "app", "view"),
    [(set(), "", PLAIN_VIEW), ({"drf"}, '"rest_framework"', REST_VIEW)],
    ids=["Django alone", "REST framework"],
)
def test_installed_in_a_blank_project_it_protects_a_view(
    wheel: Path, tmp_path: Path, extras: set[str], app: str, view: str
) -> None:
    python = install(wheel, tmp_path / "venv", extras)
    run(python, "-m", "django", "startproject", "blank", ".", cwd=tmp_path)
    settings, urls = tmp_path / "blank/settings.py", tmp_path / "blank/urls.py"
    settings.write_text(settings.read_text() + SETTINGS + f"INSTALLED_APPS += [{app}]\n")
    urls.write_text(urls.read_text() + URLS)
    (tmp_path / "blank/views.py").write_text(view)

    run(python, "manage.py", "migrate", cwd=tmp_path)
    run(python, "manage.py", "makemigrations", "--check", "--dry-run", cwd=tmp_path)
    run(python, "manage.py", "check", "--fail-level", "WARNING", cwd=tmp_path)
    calls = ["-c", f"import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'blank.settings'\n{CALLS}"]
    result = json.loads(run(python, *calls, cwd=tmp_path))
    assert result["statuses"] == [201, 201, 422, 201]
    assert result["bodies"][0] == result["bodies"][1]
    assert result["replayed"] == [None, "true", None, None]
    assert result["teams"] == ["dev", "ops"]
    # It was the installed one that did so, not this repository's.
    found = run(python, "-c", "import idempotency; print(idempotency.__file__)", cwd=tmp_path)
    assert Path(found).is_relative_to(tmp_path)


def test_the_version_is_the_projects(wheel: Path) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    assert wheel.name == f"django_idempotency-{version[1]}-py3-none-any.whl"
