"""The commands about the ground we stand on: env, ca, config, doctor, demo."""

import os
from typing import Any

import click

from proxy.ca import ensure
from proxy.cli.common import as_json, print_json, settings, with_settings
from proxy.environ import Form, addressed, render, variables
from proxy.errors import Failure
from proxy.house import House
from proxy.settings import Settings


@click.command("env")
@with_settings
@click.option("--run", "run_id", metavar="ID", help="Let everything in this shell belong to one run.")
@click.option(
    "--format", "form", type=click.Choice(["sh", "fish", "json", "dotenv"]), default="sh", help="Default: sh."
)
def env_command(run_id: str | None, form: Form, **flags: Any) -> None:
    """Print what makes a shell's programs go through the running `playhead up`.

    \b
        eval "$(playhead env)"
    """
    house = House(settings(**flags))
    note = house.data.notice("up")
    if note is None:
        raise Failure(
            "no `playhead up` runs on this data directory; start one, or wrap a command: playhead record -- CMD"
        )
    proxy = addressed(note["proxy"], run_id, house.token) if run_id else note["proxy"]
    turned = variables(
        proxy=proxy, ca=note["ca"], ca_bundle=note["ca_bundle"], run=run_id, api=note["api"], base=os.environ
    )
    click.echo(render(turned, form), nl=False)


@click.command("ca")
@with_settings
@as_json
@click.option("--bundle", is_flag=True, help="The file that holds the system's roots as well.")
def ca_command(bundle: bool, as_json: bool, **flags: Any) -> None:
    """Print the path of our CA certificate, which clients must trust. It is made on first use."""
    house = House(settings(**flags))
    authority = ensure(house.data.keys)
    if as_json:
        print_json({"ca": str(authority.certificate), "ca_bundle": str(authority.bundle)})
        return
    click.echo(authority.bundle if bundle else authority.certificate)


@click.command("config")
@with_settings
@as_json
def config_command(as_json: bool, **flags: Any) -> None:
    """Print the settings in force, secrets masked, and what each one means."""
    found = settings(**flags)
    values = found.model_dump(mode="json")
    if as_json:
        print_json(values)
        return
    for name, field in Settings.model_fields.items():
        click.echo(f"{click.style(name, bold=True)} = {values[name]!r}")
        click.echo(f"    {field.description or ''}")


COMMANDS = (env_command, ca_command, config_command)
