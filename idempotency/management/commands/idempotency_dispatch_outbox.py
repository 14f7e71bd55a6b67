from __future__ import annotations

import signal
import threading
from argparse import ArgumentParser
from typing import Any

from idempotency.jobs import Result
from idempotency.management.job_command import JobCommand
from idempotency.outbox import jobs


class Command(JobCommand):
    help = "Deliver the messages of the outbox that are due."

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--watch",
            action="store_true",
            help="Deliver what comes, until SIGTERM or SIGINT. Any number may run at once.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["watch"]:
            self._watch(options["database"])
        else:
            super().handle(*args, **options)

    def run(self, **options: Any) -> Result:
        return jobs.dispatch_outbox(**options)

    def _watch(self, using: str | None) -> None:
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        self.stdout.write("watching the outbox")
        self.stdout.flush()
        jobs.watch(using, stop)
