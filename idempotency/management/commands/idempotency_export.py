from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.core.serializers.json import DjangoJSONEncoder
from django.db import connections

from idempotency import privacy


class Command(BaseCommand):
    help = (
        "Print what is stored of an account, as one JSON object a line: keys, their events and "
        "proposals, and stored responses. Masked as in the admin, unless --raw."
    )
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("tenant", help="The account, as the admin shows it.")
        parser.add_argument("--raw", action="store_true", help="Mask nothing.")
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            help="The database to look at; by default the one that keys are written to.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        found = privacy.export(options["tenant"], raw=options["raw"], using=options["database"])
        for row in found:
            self.stdout.write(json.dumps(row, cls=DjangoJSONEncoder, ensure_ascii=False))
