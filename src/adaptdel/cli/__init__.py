"""The command line: ``adaptdel COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

import click

COMMANDS = ("demo", "plan", "train", "calibrate", "certify", "recertify", "report", "verify")


class Commands(click.Group):
    """The commands in the order of use, each imported when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, from the module of that name."""
        if cmd_name not in COMMANDS:
            return None
        found: click.Command = getattr(import_module(f"adaptdel.cli.{cmd_name}"), f"{cmd_name}_command")
        return found


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("adaptdel"), prog_name="adaptdel")
def commands() -> None:
    """Proofs of robustness for sequence classifiers."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; bad input ends in one sentence on standard error and exit status 2."""
    try:
        status = commands.main(args=arguments, prog_name="adaptdel", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context else "adaptdel"
        _fail(where, error.format_message())
    except click.exceptions.Abort:
        click.echo("adaptdel: stopped", err=True)
        sys.exit(130)
    except (ValueError, OSError, ImportError) as error:
        _fail("adaptdel", str(error))
    sys.exit(status if isinstance(status, int) else 0)


def _fail(where: str, message: str) -> None:
    click.echo(f"{where}: {message}", err=True)
    sys.exit(2)
