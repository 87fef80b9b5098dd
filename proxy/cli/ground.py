"""The commands about the ground we stand on: env, ca, config, doctor, demo."""

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from proxy import doctor
from proxy.ca import ensure
from proxy.cli.common import RUN_ID, as_json, print_json, settings, with_settings
from proxy.demo.demo import demo
from proxy.demo.screen import Screen
from proxy.environ import Form, addressed, render, variables
from proxy.errors import Failure
from proxy.house import House
from proxy.record import java_roots, new_run
from proxy.settings import Settings
from proxy.text import print_table
from proxy.witness import HOST, echoing
from proxy.wrap import present


@click.command("env", short_help="Print what points a shell at the running `up`.")
@with_settings
@click.option("--run", "run_id", type=RUN_ID, metavar="ID", help="Let everything in this shell belong to one run.")
@click.option(
    "--format", "form", type=click.Choice(["sh", "fish", "json", "dotenv"]), default="sh", help="Default: sh."
)
@click.option("--wait", is_flag=True, help="Wait up to a minute for an `up` that was started just now.")
@as_json
def env_command(run_id: str | None, form: Form, wait: bool, as_json: bool, **flags: Any) -> None:
    """Print what makes a shell's programs go through the running `playhead up`.

    \b
        playhead up &
        eval "$(playhead env --wait)"
    """
    house = House(settings(**flags))
    note = house.running_up(patience=60, coming=wait)
    if note is None:
        raise Failure(
            "no `playhead up` runs on this data directory; start one, or wrap a command: playhead record -- CMD"
        )
    if house.token and run_id is None:
        # A token is the password to a user name, which is the run; several clients send none without the other.
        run_id = new_run(time.time())
    proxy = addressed(note["proxy"], run_id, house.token) if run_id else note["proxy"]
    turned = variables(
        proxy=proxy, ca=note["ca"], ca_bundle=note["ca_bundle"], run=run_id, api=note["api"], base=os.environ
    )
    click.echo(render(turned, "json" if as_json else form), nl=False)


@click.command("ca", short_help="Print the path of our CA certificate.")
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


@click.command("config", short_help="Print the settings in force.")
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


@click.command("doctor", short_help="Prove which clients on this machine go through, and which would escape.")
@with_settings
@as_json
@click.option("--strict", is_flag=True, help="Exit with 1 for any client here that does not go through.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def doctor_command(command: tuple[str, ...], strict: bool, as_json: bool, **flags: Any) -> None:
    """Let every client on this machine ask an invented host through a door of our own, and say what became of it.

    With COMMAND, the clients are those of the Python or Node that COMMAND would use; COMMAND itself is not run, and a client
    that it tells to ignore the proxy is not found here. Exits with 1 where one of these would escape the recorder or does not
    trust our CA: of `-- python agent.py` the Python clients, of `-- curl URL` curl; other programs on this machine are listed
    and change nothing, unless with --strict. Nothing leaves this machine.
    """
    if command:
        present(command)
    found = asyncio.run(_examined(settings(**flags), command))
    if as_json:
        print_json(doctor.as_json(found))
    else:
        print_table(("CLIENT", "VERDICT", "RUN KNOWN", "WHAT TO DO"), doctor.rows(found), advice=True)
        for sentence in doctor.surroundings(os.environ):
            click.echo(f"playhead: {sentence}", err=True)
        if command and not strict and not doctor.used_by(command, os.environ, found):
            click.echo(
                "playhead: which clients COMMAND uses cannot be told from what starts it: see the list", err=True
            )
    judged = found if strict else doctor.used_by(command, os.environ, found)
    raise click.exceptions.Exit(0 if doctor.sound(judged) else 1)


async def _examined(found: Settings, command: tuple[str, ...]) -> tuple[doctor.Finding, ...]:
    async with House(found) as house, echoing() as echo:
        door = await house.door(mode="passthrough", spooled=False, upstreams={HOST: echo.origin})
        place = doctor.Door(
            proxy=f"http://127.0.0.1:{door.ready['port']}",
            ca=door.ready["ca"],
            ca_bundle=door.ready["ca_bundle"],
            echo=echo,
            token=house.token,
            truststore=java_roots(door.ready["ca_bundle"]),
        )
        return await doctor.examine(place, os.environ, command)


@click.command("demo", short_help="See the whole of it in a minute: record, cut the network, replay, miss.")
@click.option(
    "--home", type=click.Path(path_type=Path), metavar="DIR", help="Where the demo keeps everything it makes."
)
def demo_command(home: Path | None) -> None:
    """Record a real agent, stop the servers, and replay it with the network gone.

    A local stand-in for a model API and a small tool server answer an agent written with the official `openai` SDK. Nothing
    is sent beyond this machine, nothing is left running, and all that is written lies in one directory.
    """
    place = home or Path(tempfile.gettempdir()) / f"playhead-demo-{os.geteuid()}"
    raise click.exceptions.Exit(asyncio.run(demo(place, Screen(sys.stdout))))


COMMANDS = (env_command, ca_command, config_command, doctor_command, demo_command)
