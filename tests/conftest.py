"""Servers for the tests, started once a run and before Django reads its settings.

TEST_DATABASE chooses what the suite runs on:
    embedded (the default)   PostgreSQL from its wheel
    sqlite                   SQLite, a file
    postgres:/path/to/bin    PostgreSQL of another version, from its own programs
DATABASE_URL and REDIS_URL, when set, replace the embedded servers.
"""

import contextlib
import os
import re
import shutil
import tempfile
import threading
from pathlib import Path

import pytest

from config import embedded

pytest_plugins = [
    "tests.plugins.emptying",
    "tests.plugins.fault_proxy",
    "tests.plugins.gateway",
    "tests.plugins.measured",
]

servers = pytest.StashKey[contextlib.ExitStack]()

ENVIRONMENT = {
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "SECRET_KEY": "of the tests",
    "DEBUG": "0",
    "DEMO": "1",
    "HTTPS": "0",
    "ALLOWED_HOSTS": "localhost,127.0.0.1",
    "LOG_FORMAT": "console",
    # Nobody listens; tests that want one start it.
    "GATEWAY_URL": "http://127.0.0.1:9000",
}


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update(ENVIRONMENT)
    if hasattr(config, "workerinput"):  # of xdist, whose controller has started the servers
        _take_a_database_of_valkey(config.workerinput["workerid"])
    else:
        config.stash[servers] = contextlib.ExitStack()
        _start_servers(config.stash[servers])
    _adjust_settings()


def pytest_unconfigure(config: pytest.Config) -> None:
    if servers in config.stash:
        config.stash[servers].close()


def pytest_report_header() -> list[str]:
    return [f"database: {os.environ['TEST_DATABASE']}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ["TEST_DATABASE"] == "sqlite":
        for item in items:
            if item.get_closest_marker("postgresql"):
                item.add_marker(pytest.mark.skip(reason="needs PostgreSQL; this run has SQLite"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium. Without one the test is skipped, or fails under REQUIRE_BROWSER."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    if os.environ.get("REQUIRE_BROWSER"):
        pytest.fail("REQUIRE_BROWSER is set and there is no Chromium")
    pytest.skip("no Chromium on this machine; .ci/run installs it")


def _start_servers(started: contextlib.ExitStack) -> None:
    kind = os.environ.setdefault(
        "TEST_DATABASE", "DATABASE_URL" if os.environ.get("DATABASE_URL") else "embedded"
    )
    folder = Path(tempfile.mkdtemp(prefix="tests-"))
    started.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.chmod(0o755)  # PostgreSQL 15, run as nobody, walks it
    if kind == "sqlite":
        os.environ["DATABASE_URL"] = f"sqlite:///{folder}/database.sqlite3"
    elif kind != "DATABASE_URL":
        bin_dir = Path(kind.removeprefix("postgres:")) if kind != "embedded" else None
        postgres = embedded.Postgres(folder / "postgres", durable=False, bin_dir=bin_dir)
        os.environ["DATABASE_URL"] = started.enter_context(postgres).url
    if not os.environ.get("REDIS_URL"):
        valkey = embedded.Valkey(folder / "valkey", durable=False)
        os.environ["REDIS_URL"] = started.enter_context(valkey).url


def _take_a_database_of_valkey(worker: str) -> None:
    number = int(worker.removeprefix("gw")) % 16
    os.environ["REDIS_URL"] = re.sub(r"/\d*$", f"/{number}", os.environ["REDIS_URL"])


def _adjust_settings() -> None:
    from django.conf import settings
    from django.core.servers.basehttp import WSGIRequestHandler

    from idempotency import traffic

    # Threads cannot share SQLite's default for tests, a database in memory.
    if os.environ["TEST_DATABASE"] == "sqlite":
        name = settings.DATABASES["default"]["NAME"]
        settings.DATABASES["default"].setdefault("TEST", {})["NAME"] = f"{name}.test"
    # pytest-django read the settings of a worker of xdist before it got its own database of Valkey.
    url = os.environ["REDIS_URL"]
    settings.REDIS_URL = settings.CELERY_BROKER_URL = url
    settings.IDEMPOTENCY["REDIS_URL"] = settings.PAYMENTS_GATEWAY["REDIS_URL"] = url
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    # Django's live server writes an answer in two pieces; the second would wait 40 ms for the
    # client's delayed acknowledgement of the first.
    WSGIRequestHandler.disable_nagle_algorithm = True
    # A thread that tells Redis what was counted would meddle with tests that cut it off.
    traffic.EVERY = threading.TIMEOUT_MAX
