"""The commands about the ground we stand on: env, ca, config, doctor, demo."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from proxy.capture.command import java_roots
from proxy.cli.common import RUN_ID, as_json, print_json, settings, with_settings
from proxy.demo.demo import demo
from proxy.demo.screen import Screen
from proxy.doctor import doctor
from proxy.doctor.probe_servers import HOST, echoing
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.user_command import present
from proxy.recording.run_identity import BY_PROCESS
from proxy.settings import Settings
from proxy.terminal.text import print_table
from proxy.trust.ca import ensure
from proxy.trust.client_environment import LOOPBACK, Form, addressed, container_variables, render, variables
from store.datadir import DataDir

CONTAINER_HOST = "host.docker.internal"
"""Docker Desktop's name for the machine; elsewhere `--add-host host.docker.internal:host-gateway` gives it."""

CA_DIRECTORY = "/etc/playhead"


@click.command("env", short_help="Print what points a shell at the running `up`.")
@with_settings
@click.option(
    "--run",
    "run_id",
    type=RUN_ID,
    metavar="ID",
    help="Let everything that is started from this shell belong to one run; else each agent that is started has its own.",
)
@click.option(
    "--format", "form", type=click.Choice(["sh", "fish", "json", "dotenv"]), default="sh", help="Default: sh."
)
@click.option(
    "--for-container",
    "container_host",
    is_flag=False,
    flag_value=CONTAINER_HOST,
    metavar="[HOST]",
    help="For programs in a container, which reaches this machine as HOST (default: host.docker.internal): no loopback"
    " address and no path of this machine is printed.",
)
@click.option(
    "--ca-dir",
    default=CA_DIRECTORY,
    metavar="DIR",
    help=f"With --for-container: where the container has ca.pem and ca-bundle.pem. Default: {CA_DIRECTORY}.",
)
@click.option("--wait", is_flag=True, help="Wait up to a minute for an `up` that was started just now.")
@as_json
def env_command(
    run_id: str | None,
    form: Form,
    container_host: str | None,
    ca_dir: str,
    wait: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Print what makes a shell's programs go through the running `playhead up`.

    \b
        playhead up &
        eval "$(playhead env --wait)"

    For a container, with the certificates mounted or fetched (what is said on stderr shows both):

    \b
        playhead env --for-container --format dotenv > agent.env
        docker run --env-file agent.env …
    """
    house = CommandProcesses(settings(**flags))
    note = house.running_up(patience=60, coming=wait)
    if note is None:
        raise Failure(
            "no `playhead up` runs on this data directory; start one, or wrap a command: playhead record -- CMD"
        )
    # A token is the password to a user name; several clients send none without the other. A run that is named here would
    # merge all that is started from the shell: so the process that owns a connection names it.
    proxy = str(note["proxy"])
    if run_id:
        proxy = addressed(proxy, run_id, house.run_token(run_id))
    elif note.get("asks_for_token"):
        proxy = addressed(proxy, BY_PROCESS, house.secret(DataDir.recording_token))
    if container_host is not None:
        found = container_variables(proxy=proxy, host=container_host, ca_directory=ca_dir, run=run_id, api=note["api"])
        click.echo(render(found, "json" if as_json else form), nl=False)
        _explain_certificates(found["PLAYHEAD_API"], ca_dir.rstrip("/"), str(note.get("listen")))
        return
    turned = variables(
        proxy=proxy,
        ca=note["ca"],
        ca_bundle=note["ca_bundle"],
        run=run_id,
        api=note["api"],
        api_token_file=house.data.api_token_file,
        base=os.environ,
    )
    click.echo(render(turned, "json" if as_json else form), nl=False)


def _explain_certificates(api: str, directory: str, listen: str) -> None:
    """Say how a container gets the certificates that the variables name, and what it may lack to reach us."""
    lines = [
        f"the container needs the certificates in {directory}; it can fetch them:",
        f"  mkdir -p {directory} && for f in ca.pem ca-bundle.pem; do curl -fsS {api}/$f -o {directory}/$f; done",
        "or have them mounted:",
        f'  docker run -v "$(playhead ca)":{directory}/ca.pem:ro -v "$(playhead ca --bundle)":{directory}/ca-bundle.pem:ro …',
    ]
    if listen in LOOPBACK:
        lines.append(
            f"this `up` listens on {listen}, which containers reach only in Docker Desktop; elsewhere start it with"
            " --listen and the address of Docker's bridge (172.17.0.1) or 0.0.0.0, and docker run with"
            " --add-host host.docker.internal:host-gateway"
        )
    for line in lines:
        click.echo(f"playhead: {line}", err=True)


@click.command("ca", short_help="Print the path of our CA certificate.")
@with_settings
@as_json
@click.option("--bundle", is_flag=True, help="The file that holds the system's roots as well.")
def ca_command(bundle: bool, as_json: bool, **flags: Any) -> None:
    """Print the path of our CA certificate, which clients must trust. It is made on first use."""
    house = CommandProcesses(settings(**flags))
    authority = ensure(house.data.keys)
    if as_json:
        print_json({"ca": str(authority.certificate), "ca_bundle": str(authority.bundle)})
        return
    click.echo(authority.bundle if bundle else authority.certificate)


@click.command("token", short_help="Print the token of the REST API, or of the proxy.")
@with_settings
@as_json
@click.option("--recording", is_flag=True, help="The one that only records: it goes into a proxy's URL.")
@click.option("--run", "run_id", type=RUN_ID, metavar="ID", help="The one that records into this run alone.")
def token_command(recording: bool, run_id: str | None, as_json: bool, **flags: Any) -> None:
    """Print the token that the REST API asks for. It is made on first use and lies in the data directory.

    Whoever has it can read and delete all that was recorded, so give it to people and to programs that look at
    recordings. It goes into a header:

    \b
        curl -H "Authorization: Bearer $(playhead token)" http://127.0.0.1:8081/v1/runs

    Agents need none of it, and `playhead record` and `env` give them what they need. An agent on another machine gets
    the recording token, as the password in its proxy's URL; it can record, and neither read nor delete:

    \b
        HTTPS_PROXY=http://RUN:$(playhead token --recording)@HOST:8080

    A run that `record`, `fork` or `resume` began takes further requests only with its own token (--run RUN).
    """
    if recording and run_id:
        raise click.UsageError("--recording and --run are two tokens: ask for one of them.")
    house = CommandProcesses(settings(**flags))
    if run_id:
        told = {"token": house.run_token(run_id), "run": run_id}
    elif recording:
        told = {"token": house.secret(DataDir.recording_token), "file": str(house.data.recording_token_file)}
    else:
        told = {"token": house.secret(DataDir.api_token), "file": str(house.data.api_token_file)}
    if as_json:
        print_json(told)
        return
    click.echo(told["token"])


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


@click.command("doctor", short_help="Test which clients on this machine are recorded, and which would escape.")
@with_settings
@as_json
@click.option("--strict", is_flag=True, help="Exit with 1 for any client here that does not go through.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def doctor_command(command: tuple[str, ...], strict: bool, as_json: bool, **flags: Any) -> None:
    """Let every client on this machine ask an invented host through a worker of our own, and say what became of it.

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


async def _examined(found: Settings, command: tuple[str, ...]) -> tuple[doctor.ClientFinding, ...]:
    async with CommandProcesses(found) as house, echoing() as echo:
        worker = await house.worker(mode="passthrough", spooled=False, upstreams={HOST: echo.origin})
        place = doctor.ProbedWorker(
            proxy=f"http://127.0.0.1:{worker.ready['port']}",
            ca=worker.ready["ca"],
            ca_bundle=worker.ready["ca_bundle"],
            echo=echo,
            token=house.token,
            truststore=java_roots(worker.ready["ca_bundle"]),
        )
        captive = {"proxy": place.proxy, **worker.ready}
        return (
            *await doctor.examine(place, os.environ, command),
            await doctor.examine_captive(captive, echo, house.token),
        )


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


COMMANDS = (env_command, ca_command, token_command, config_command, doctor_command, demo_command)
