"""`python -m kvwise`: the command line without its script. It adds nothing to `kvwise.cli`."""

from __future__ import annotations

from kvwise.cli import main

main()
