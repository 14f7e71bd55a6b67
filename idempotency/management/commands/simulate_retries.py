from __future__ import annotations

import argparse
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from idempotency.client.simulation import commandline, options


class Command(BaseCommand):
    """The simulator of the client half. It needs neither settings of ours nor a database."""

    help = options.DESCRIPTION
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        options.add_arguments(parser)

    def handle(self, *args: Any, **chosen: Any) -> None:
        try:
            commandline.run(argparse.Namespace(**chosen), self.stdout.write)
        except commandline.Failed as failure:
            raise CommandError(str(failure), returncode=failure.code) from failure
