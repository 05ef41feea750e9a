"""The command line: one verb per module, imported when it is used. It decides nothing itself.

Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 130 interrupted.
"""

from __future__ import annotations

import io
import sys
from typing import Final

import click

import kvwise
from kvwise.cli.groups import LazyGroup
from kvwise.errors import ConfigError, KvwiseError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_INTERRUPTED: Final = 130

VERBS: Final = {
    "demo": "Measure a real engine on this machine, with and without the cache.",
    "serve": "Run the cache daemon of this node.",
    "explain": "Show why recent requests were loaded or recomputed.",
    "doctor": "Check that this host can run kvwise well, and say what to change.",
    "probe": "Measure memory, drives and codecs of this host, for `kvwise plan`.",
    "sim": "Run the brain in virtual time: under faults, or over a trace of requests.",
    "plan": "Say which tiers pay, for a model, a host and a trace.",
    "model": "Show how many bytes the KV of a model takes.",
    "trace": "Show what is in a trace of requests, or make one up.",
    "bench": "Measure tiers, engine and other caches beside yardsticks of the same minute.",
}
"""Every verb with its one line in `kvwise --help`; the module of the same name holds `command`."""

EXAMPLES: Final = """\b
Examples:
  kvwise doctor
  kvwise serve --dram 4GiB --disk /var/cache/kvwise --disk-size 100GiB
  kvwise explain -n 5
  kvwise VERB --help
"""


class Verbs(LazyGroup):
    """The verbs of the command line."""

    table = VERBS
    module = f"{__name__}.{{}}"
    nouns = ("verb", "Verbs")


@click.command(
    cls=Verbs,
    epilog=EXAMPLES,
    subcommand_metavar="VERB ...",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(kvwise.__version__, message="kvwise %(version)s")
def group() -> None:
    """KV-cache offloading for LLM engines.

    kvwise keeps the KV cache that an engine would throw away, in memory and on disk,
    and loads it back only where that is faster than computing it again.
    """


def run(arguments: list[str]) -> int:
    """Run one command line; every error ends as a message on stderr and an exit code.

    What the output's encoding lacks is written as an escape.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        result = group.main(arguments, prog_name="kvwise", standalone_mode=False)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.message, err=True)
        return EXIT_USAGE
    except click.UsageError as error:
        _complain(error.format_message(), _usage_hint(error))
        return EXIT_USAGE
    except click.ClickException as error:
        _complain(error.format_message(), "")
        return EXIT_FAILED
    except ConfigError as error:
        _complain(*_split(error))
        return EXIT_USAGE
    except KvwiseError as error:
        _complain(*_split(error))
        return EXIT_FAILED
    except BrokenPipeError:  # whoever read the output has had enough
        return EXIT_FAILED
    except (OSError, MemoryError) as error:
        _complain(_spoken(error), "`kvwise doctor` looks at this machine's limits")
        return EXIT_FAILED
    return result if isinstance(result, int) else 0


def _spoken(error: OSError | MemoryError) -> str:
    """What the operating system said, and about which file."""
    if not isinstance(error, OSError) or error.strerror is None:
        return str(error) or "out of memory"
    return f"{error.filename}: {error.strerror}" if error.filename else error.strerror


def _split(error: KvwiseError) -> tuple[str, str]:
    """Message and hint: a hint is the part of the message after `hint:`, or an attached note."""
    message, _, hint = str(error).partition("hint:")
    notes = getattr(error, "__notes__", [])
    return message.strip(" \n;,"), hint.strip() or " ".join(notes)


def _usage_hint(error: click.UsageError) -> str:
    """Where the help of the command that was misused is."""
    return f"{error.ctx.command_path} --help" if error.ctx is not None else "kvwise --help"


def _complain(message: str, hint: str) -> None:
    """Two plain lines on stderr; they mean the same without colour."""
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)
