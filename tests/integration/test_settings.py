"""The settings under the environments that matter, each in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PRODUCTION = {
    "SECRET_KEY": "LPsz3AQ0bZ8nR6YtXcVk1WmD5uHf7gJqEoTiU2hNyKxSlFrCwPd",
    "ALLOWED_HOSTS": "api.example.com",
    "DATABASE_URL": "postgres://user@database/name",
    "REDIS_URL": "redis://valkey/0",
    "GATEWAY_URL": "https://gateway.example.com",
}


def python(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run Python with nothing but `env`."""
    kept = {"PATH": os.environ["PATH"], "STACK_DATA": "/nonexistent"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=kept | env, capture_output=True, text=True)


def manage(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return python("manage.py", *arguments, **env)


def value(name: str, **env: str) -> object:
    program = f"from config import settings; import json; print(json.dumps(settings.{name}))"
    done = python("-c", program, **env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_check_deploy_is_clean_in_production() -> None:
    done = manage("check", "--deploy", "--fail-level", "INFO", **PRODUCTION)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["SECRET_KEY", "DATABASE_URL", "REDIS_URL", "GATEWAY_URL"])
def test_what_production_cannot_do_without_is_asked_for_by_name(name: str) -> None:
    env = {key: value for key, value in PRODUCTION.items() if key != name}
    done = manage("check", **env)
    assert done.returncode != 0
    assert re.search(rf"^\S*ImproperlyConfigured: {name} is not set\. Set", done.stderr, re.M)


def test_a_developer_needs_only_debug() -> None:
    done = manage("check", DEBUG="1")
    assert done.returncode == 0, done.stderr


def test_the_demo_is_refused_on_hosts_that_others_reach() -> None:
    done = manage("check", DEMO="1", **PRODUCTION)
    assert "ALLOWED_HOSTS may hold only localhost" in done.stderr


def test_faults_on_demand_are_refused_outside_the_demo() -> None:
    assert "needs DEMO=1" in manage("check", DEMO_FAULTS="1", **PRODUCTION).stderr


def test_cors_is_closed_by_default_and_open_to_one_origin_in_the_demo() -> None:
    demo = PRODUCTION | {"DEMO": "1", "ALLOWED_HOSTS": "localhost"}
    assert value("CORS_ALLOWED_ORIGINS", **PRODUCTION) == []
    assert value("CORS_ALLOWED_ORIGINS", **demo) == ["http://localhost:3000"]


def test_a_dead_database_is_noticed_and_a_slow_one_is_cut_off() -> None:
    options = value("DATABASES['default']['OPTIONS']", **PRODUCTION)
    assert isinstance(options, dict)
    assert options["connect_timeout"] == 2
    assert "statement_timeout=15000" in options["options"]
    assert "lock_timeout=5000" in options["options"]


def test_sqlite_takes_its_write_lock_at_the_start_of_a_transaction() -> None:
    env = PRODUCTION | {"DATABASE_URL": "sqlite:////tmp/unused.sqlite3"}
    assert value("DATABASES['default']['OPTIONS']['transaction_mode']", **env) == "IMMEDIATE"


def test_the_schedule_follows_the_environment() -> None:
    program = (
        "from config.celery import app\n"
        "entry = app.conf.beat_schedule['idempotency.reclaim_expired_leases']\n"
        "print(entry['schedule'])"
    )
    done = manage("shell", "--verbosity", "0", "-c", program, IDEMPOTENCY_BEAT="3", **PRODUCTION)
    assert done.stdout.strip() == "3.0", done.stderr
