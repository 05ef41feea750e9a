"""The command line's entry, as a script and as `python -m kvwise`. It knows no verb.

It imports nothing before it can take a hasty Ctrl-C, which needs no traceback.
"""

from __future__ import annotations

import sys


def _quiet(kind: type[BaseException], error: BaseException, _where: object) -> None:
    """Say nothing of Ctrl-C while the command line is still being loaded."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, error.__traceback__)


def main() -> None:
    """Load the command line, run it, and leave the process with its exit code."""
    sys.excepthook = _quiet
    from kvwise import cli  # noqa: PLC0415  loading takes longer than pressing two keys

    sys.exit(cli.run(sys.argv[1:]))


if __name__ == "__main__":
    main()
