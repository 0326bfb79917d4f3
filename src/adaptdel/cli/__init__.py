"""The command line: ``adaptdel COMMAND``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version

import click

from adaptdel.cli.certify import certify_command
from adaptdel.cli.plan import plan_command
from adaptdel.cli.recertify import recertify_command
from adaptdel.cli.train import train_command
from adaptdel.cli.verify import verify_command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version("adaptdel"), prog_name="adaptdel")
def commands() -> None:
    """Proofs of robustness for sequence classifiers."""


commands.add_command(plan_command)
commands.add_command(train_command)
commands.add_command(certify_command)
commands.add_command(recertify_command)
commands.add_command(verify_command)


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
