"""Owns one promise: a program started through it ends when the process that started it dies.

It asks the kernel for SIGTERM at the parent's death and then becomes the program. It watches
nothing itself, so even a parent that was killed outright leaves nothing running.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become `arguments[1:]`, a child of process `arguments[0]`, and never outlive that process."""
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before the kernel knew of our wish
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
