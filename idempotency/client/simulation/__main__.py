"""``python -m idempotency.client.simulation``"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from idempotency.client.simulation import commandline, options

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m idempotency.client.simulation", description=options.DESCRIPTION
    )
    options.add_arguments(parser)
    try:
        commandline.run(parser.parse_args(arguments), print)
    except commandline.Failed as failure:
        print(failure, file=sys.stderr)
        return failure.code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
