"""The command line: ``adaptdel COMMAND``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from adaptdel import __version__

COMMANDS = {
    "demo": "Compare all methods on real movie reviews and write a report.",
    "plan": "Show the radius that votes certify and the votes that each radius needs.",
    "train": "Train a smoothed or an exact classifier.",
    "calibrate": "Choose how many tokens a model keeps at each length.",
    "protect": "Choose a threshold with a proved false-positive rate.",
    "certify": "Certify the inputs of a file with MODEL.",
    "status": "Show the progress of the run in the folder RUN.",
    "recertify": "Derive new radii from the evidence of a run.",
    "report": "Compare runs on an HTML page with tables and figures.",
    "verify": "Verify certificates by deriving each radius again.",
    "attack": "Attack a model on the inputs of a data file.",
    "audit": "Look for certificates of RUN that do not hold.",
    "serve": "Serve the models in the MODEL folders over HTTP.",
}


class Commands(click.Group):
    """The commands, listed in order of use. A command's module is imported when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands with a line on each, none of which is imported for that."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command with this name, or None if there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"adaptdel.cli.{cmd_name}"), f"{cmd_name}_command")
        if cmd_name != "demo" and IMPORT not in command.params:
            command.params.append(IMPORT)
        return command


def _import(context: click.Context, option: click.Parameter, names: tuple[str, ...]) -> None:
    """Import modules that the user names, which register noises, rates, bounds or classifiers."""
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    for name in names:
        try:
            import_module(name)
        except Exception as error:  # whatever the module of a user raises
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise click.BadParameter(f"{name!r} cannot be imported: {reason:.200}", context, option) from None


IMPORT = click.Option(
    ["--import"],
    multiple=True,
    metavar="MODULE",
    is_eager=True,
    expose_value=False,
    callback=_import,
    help="Import a module of yours that registers a noise, rate, bound or classifier; repeatable.",
)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, prog_name="adaptdel")
@click.pass_context
def commands(context: click.Context) -> None:
    """Certify sequence classifiers against inserted, deleted and substituted words.

    A certificate states, with certainty (exact) or confidence 1 - alpha (smoothed), that no attacker within the
    certified radius can change the classifier's answer to an input. Typical order: train, calibrate (AdaptDel+
    only), certify, report, verify; attack and audit test the certificates.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input prints one sentence to standard error and exits with status 2."""
    try:
        status = commands.main(args=arguments, prog_name="adaptdel", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        _fail(context.command_path if context else "adaptdel", error.format_message())
    except click.exceptions.Abort:
        click.echo("adaptdel: stopped", err=True)
        sys.exit(130)
    except OSError as error:
        has_name = error.filename is not None and error.strerror is not None
        _fail("adaptdel", f"{error.filename}: {error.strerror}" if has_name else str(error))
    except (ValueError, ImportError) as error:
        _fail("adaptdel", str(error))
    except MemoryError:
        _fail("adaptdel", "out of memory: a file is too large for this machine, or its memory is used by others")
    sys.exit(status if isinstance(status, int) else 0)


def _fail(command: str, message: str) -> None:
    click.echo(f"{command}: {message}", err=True)
    sys.exit(2)
