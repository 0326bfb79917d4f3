"""``adaptdel serve``: models as a service."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from stat import S_IROTH
from typing import Any

import click

from adaptdel.cli.options import chosen_settings, described, list_settings_option, set_option
from adaptdel.settings import SERVE, TOKEN_VARIABLE, ServeSettings

SHORT_TOKEN = 16  # characters
NAMED = ("host", "port", "allowed_hosts", "seed_per_request")


@click.command("serve")
@click.argument("models", nargs=-1, metavar="MODEL [MODEL]...")
@click.option(
    "--demo", is_flag=True, help="Serve models of movie reviews; without out/demo, they are trained in seconds."
)
@click.option("--host", default=SERVE.host, show_default=True, help="Address to listen on.")
@click.option("--port", default=SERVE.port, show_default=True, help="Port to listen on; 0 for any free port.")
@click.option(
    "--spamd",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Also answer mail servers on this port, in the protocol of SpamAssassin's daemon, with the first model, which "
    "must protect a class. Texts may then have as many tokens as body_bytes allows.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help=f"File with the token that clients must present.  [default: the variable {TOKEN_VARIABLE}, or no token]",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Answer only requests for this host name; repeatable.  [default: localhost, or any with another --host]",
)
@click.option("--seed-per-request", is_flag=True, help="Draw a new secret seed for every request.")
@click.option(
    "--seed-file",
    type=click.Path(path_type=Path),
    help="File with a secret from which servers derive the same seed, so that they give a text the same answer.",
)
@set_option
@list_settings_option(lambda: described(SERVE, NAMED))
def serve_command(
    models: tuple[str, ...],
    demo: bool,
    spamd: int | None,
    token_file: Path | None,
    seed_file: Path | None,
    settings: tuple[str, ...],
    **named: Any,
) -> None:
    """Serve the models in the MODEL folders over HTTP.

    Requests name a model by its folder, or by NAME if it is given as NAME=FOLDER. The first one answers
    requests that name none. Ctrl+C or SIGTERM ends the server: requests in flight are finished.
    """
    from adaptdel.serve.app import bind, serve
    from adaptdel.serve.scheduler import FILTER_NEEDED
    from adaptdel.serve.service import Service

    if not models and not demo:
        raise ValueError("give the folder of a model, such as adaptdel train writes, or --demo")
    (limits,) = chosen_settings(settings, (name for name in vars(SERVE) if name not in NAMED))
    if spamd is not None:  # or enough words would make every email too long to be filtered
        limits.setdefault("tokens", limits.get("body_bytes", SERVE.body_bytes))
    chosen = ServeSettings(**named, **limits)
    with ExitStack() as stack:
        opened = stack.enter_context(bind(chosen.host, chosen.port))  # fails before the models are loaded
        mail = None if spamd is None else stack.enter_context(bind(chosen.host, spamd, "--spamd"))
        if demo:
            from adaptdel.demo import DEMO_FOLDER, demo_models

            folders = demo_models(DEMO_FOLDER, note=lambda text: click.echo(text, err=True))
            models = (*(f"{name}={folder}" for name, folder in folders.items()), *models)
        service = Service.load(models, chosen, token_file=token_file, seed_file=seed_file)
        first = service.models[service.sources[0].name]
        if mail is not None and first.protected is None:
            raise ValueError(f"--spamd: the model {first.name!r} protects no class: {FILTER_NEEDED}")
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        if mail is not None and not chosen.is_local:
            click.echo(f"warning: anyone who reaches {chosen.host} can ask the filter: spamd has no token", err=True)
        for sentence in warnings(chosen, service.token, [file for file in (token_file, seed_file) if file]):
            click.echo(f"warning: {sentence}", err=True)
        host = f"[{chosen.host}]" if ":" in chosen.host else chosen.host
        opened.listen()  # requests from now on wait until they are read
        click.echo(f"adaptdel serves at http://{host}:{opened.getsockname()[1]}/")
        if mail is not None:
            mail.listen()
            click.echo(f"the filter {first.name!r} answers spamc at {host}:{mail.getsockname()[1]}")
        serve(service, opened, mail)


def warnings(settings: ServeSettings, token: str | None, secrets: Sequence[Path] = ()) -> list[str]:
    """What is unsafe about a server with secrets in these files."""
    sentences = [
        f"{file}: every user of this machine can read this secret: chmod 600 {file}"
        for file in secrets
        if file.stat().st_mode & S_IROTH
    ]
    if token is None and not settings.is_local:
        sentences.append(
            f"anyone who reaches {settings.host} can call this server: set {TOKEN_VARIABLE} or give --token-file"
        )
    if token is not None and len(token) < SHORT_TOKEN:
        sentences.append(f"the token has only {len(token)} characters: take at least {SHORT_TOKEN} random ones")
    return sentences
