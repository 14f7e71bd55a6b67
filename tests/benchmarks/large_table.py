"""Ten million keys and thirty days of answers: does every page of the admin answer in a second?

    python -m tests.benchmarks.large_table [--keys 10000000] [--days 30] [--data FOLDER] [--plans]

Starts a PostgreSQL of its own with its default settings, fills it, asks for each page, and looks at
the plan of every statement that the page needed. Exit code 1 when a page takes a second, or when a
statement visits more rows than a person could read about: a count or a scan of a whole table.
With --data the tables stay there for the next run.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tests.benchmarks import servers


def main() -> int:
    options = _parser().parse_args()
    # Nothing is written but the seed, so what a flush costs is not what is measured.
    with servers.started(options.data, durable=False, DEMO="1"):
        return _run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.large_table")
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--data", type=Path, help="keep the tables here for the next run")
    parser.add_argument("--plans", action="store_true", help="print the plan of every statement")
    return parser


def _run(options: argparse.Namespace) -> int:
    from django.test.utils import setup_test_environment

    setup_test_environment()
    from tests.benchmarks import large_table_pages, large_table_seed

    if large_table_seed.is_empty():
        began = time.perf_counter()
        large_table_seed.seed(options.keys, options.days)
        print(f"seeded in {(time.perf_counter() - began) / 60:.1f} minutes")
    print(large_table_seed.sizes())
    return large_table_pages.measure(show_plans=options.plans)


if __name__ == "__main__":
    sys.exit(main())
