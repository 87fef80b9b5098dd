"""The commands about the environment of clients, and of Playhead itself: env, ca, token, config, doctor, demo."""

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from calls.project_runs import DEFAULT_PROJECT
from proxy.capture.command import java_truststore
from proxy.cli.common import RUN_ID, as_json, print_json, settings_from_flags, with_settings
from proxy.demo.demo import run_demo
from proxy.demo.screen import Screen
from proxy.doctor import doctor
from proxy.doctor.probe_servers import HOST, run_echo
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api
from proxy.processes.user_command import require_command
from proxy.recording.run_identity import PER_PROCESS_USER
from proxy.settings import Settings, setting_descriptions, shown_settings
from proxy.terminal.text import print_table, printable
from proxy.trust.ca import ensure_ca
from proxy.trust.client_environment import (
    LOOPBACK,
    Form,
    container_variables,
    environment_problems,
    proxy_url_for_run,
    proxy_variables,
    render_variables,
)
from store.datadir import DataDir, open_data_dir

CONTAINER_HOST = "host.docker.internal"
"""Docker Desktop's name for the machine; elsewhere `--add-host host.docker.internal:host-gateway` gives it."""

CA_DIRECTORY = "/etc/playhead"


@click.command("env", short_help="Print the variables that point a shell at the running `up`.")
@with_settings
@click.option(
    "--run",
    "run_id",
    type=RUN_ID,
    metavar="ID",
    help="Record everything that is started from this shell as one run. Default: each process that is started has its own run.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["sh", "fish", "dotenv"]),
    default="sh",
    help="The syntax to print. Default: sh.",
)
@click.option(
    "--for-container",
    "container_host",
    is_flag=False,
    flag_value=CONTAINER_HOST,
    metavar="[HOST]",
    help="Print variables for a container, which reaches this machine as HOST (default: host.docker.internal): no loopback"
    " address and no path of this machine is printed.",
)
@click.option(
    "--ca-dir",
    default=CA_DIRECTORY,
    metavar="DIR",
    help=f"With --for-container: where the container has ca.pem and ca-bundle.pem. Default: {CA_DIRECTORY}.",
)
@click.option("--wait", is_flag=True, help="Wait up to a minute for an `up` that is starting.")
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
    """Print the variables that make a shell's programs go through the running `playhead up`.

    \b
        playhead up &
        eval "$(playhead env --wait)"

    For a container, with the certificates mounted or fetched (the notes on stderr show both):

    \b
        playhead env --for-container --format dotenv > agent.env
        docker run --env-file agent.env …
    """
    settings = settings_from_flags(**flags)
    processes = CommandProcesses(settings)
    note = processes.find_up(timeout=60, must_start=wait)
    if note is None:
        raise Failure(
            "no `playhead up` runs on this data directory; start one, or wrap a command: playhead record -- CMD"
        )
    # Several clients send no password without a user name. The name of a run would merge everything that is started from the shell,
    # so without --run the user name says that the process behind a connection names the run.
    proxy = str(note["proxy"])
    if run_id:
        proxy = proxy_url_for_run(proxy, run_id, processes.run_token(run_id))
    elif settings.project != DEFAULT_PROJECT:
        proxy = proxy_url_for_run(proxy, PER_PROCESS_USER, processes.project_token())
    elif note.get("asks_for_token"):
        proxy = proxy_url_for_run(proxy, PER_PROCESS_USER, processes.read_secret(DataDir.recording_token))
    in_project = {"PLAYHEAD_PROJECT": settings.project} if settings.project != DEFAULT_PROJECT else {}
    if container_host is not None:
        found = container_variables(proxy=proxy, host=container_host, ca_directory=ca_dir, run=run_id, api=note["api"])
        click.echo(render_variables(found | in_project, "json" if as_json else form), nl=False)
        _explain_certificates(found["PLAYHEAD_API"], ca_dir.rstrip("/"), str(note.get("listen")))
        return
    turned = proxy_variables(
        proxy=proxy,
        ca=note["ca"],
        ca_bundle=note["ca_bundle"],
        run=run_id,
        api=note["api"],
        api_token_file=processes.data.api_token_file,
        base=os.environ,
    )
    click.echo(render_variables(turned | in_project, "json" if as_json else form), nl=False)


def _explain_certificates(api: str, directory: str, listen: str) -> None:
    """Print how a container gets the certificates that the variables name, and how it can reach this machine."""
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


@click.command("ca", short_help="Print the path of Playhead's CA certificate.")
@with_settings
@as_json
@click.option(
    "--bundle", is_flag=True, help="Print the path of the file that also holds the system's root certificates."
)
def ca_command(bundle: bool, as_json: bool, **flags: Any) -> None:
    """Print the path of Playhead's CA certificate, which clients must trust. It is created on first use."""
    processes = CommandProcesses(settings_from_flags(**flags))
    authority = ensure_ca(processes.data.keys)
    if as_json:
        print_json({"ca": str(authority.certificate), "ca_bundle": str(authority.bundle)})
        return
    click.echo(authority.bundle if bundle else authority.certificate)


@click.command("config", short_help="Print the settings in force.")
@with_settings
@as_json
def config_command(as_json: bool, **flags: Any) -> None:
    """Print the settings in force with their meanings; secrets are masked."""
    found = settings_from_flags(**flags)
    values = shown_settings(found)
    if as_json:
        print_json(values)
        return
    for name, description in setting_descriptions().items():
        click.echo(f"{click.style(name, bold=True)} = {values[name]!r}")
        click.echo(f"    {description}")


@click.command("doctor", short_help="Test which clients on this machine are recorded, and which would escape.")
@with_settings
@as_json
@click.option(
    "--strict", is_flag=True, help="Exit with 1 if any client on this machine escapes, not only those of COMMAND."
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def doctor_command(command: tuple[str, ...], strict: bool, as_json: bool, **flags: Any) -> None:
    """Let every known client on this machine send a request to an invented host through a worker, and show what happened.

    With COMMAND, the clients of the Python or Node that COMMAND would use are tested. COMMAND itself is not run, so a client that it
    configures to ignore the proxy is not found. Exits with 1 if one of COMMAND's clients (of `-- python agent.py` the Python clients,
    of `-- curl URL` curl) would escape the recorder or does not trust Playhead's CA; other programs on this machine are listed, but
    count only with --strict. Nothing leaves this machine.
    """
    if command:
        require_command(command)
    found = asyncio.run(_examine_clients(settings_from_flags(**flags), command))
    if as_json:
        print_json(doctor.findings_json(found))
    else:
        print_table(("CLIENT", "VERDICT", "RUN KNOWN", "WHAT TO DO"), doctor.finding_rows(found), advice=True)
        for sentence in (*environment_problems(os.environ), *_store_problems(settings_from_flags(**flags))):
            click.echo(f"playhead: {sentence}", err=True)
        if command and not strict and not doctor.findings_for_command(command, os.environ, found):
            click.echo("playhead: which clients COMMAND uses is unknown: look for them in the list", err=True)
    judged = found if strict else doctor.findings_for_command(command, os.environ, found)
    raise click.exceptions.Exit(0 if doctor.is_every_client_recorded(judged) else 1)


def _store_problems(settings: Settings) -> list[str]:
    """Return what the running store server lacks, one sentence each: what is stored late, and what is not exported."""
    data = open_data_dir(settings.data)
    notice = data.read_notice("store")
    if notice is None or not data.store_lock.is_held():
        return []
    try:
        with Api(notice["api"], data.api_token(), data.api_token_file) as api:
            troubles, exports = api.read_troubles()
    except Failure as failure:
        return [f"the running store server cannot be asked how it is: {failure}"]
    return [
        *(f"the running store server is in trouble: {printable(reason)}" for reason in troubles),
        *(
            f"the export to {printable(endpoint)} fails: {printable(reason)}; recording goes on, and it is tried again"
            for endpoint, reason in exports.items()
        ),
    ]


async def _examine_clients(settings: Settings, command: tuple[str, ...]) -> tuple[doctor.ClientFinding, ...]:
    async with CommandProcesses(settings) as processes, run_echo() as echo:
        worker = await processes.start_worker(mode="passthrough", spooled=False, upstreams={HOST: echo.origin})
        directory = doctor.ProbedWorker(
            proxy=f"http://127.0.0.1:{worker.ready['port']}",
            ca=worker.ready["ca"],
            ca_bundle=worker.ready["ca_bundle"],
            echo=echo,
            token=processes.token,
            truststore=java_truststore(worker.ready["ca_bundle"]),
        )
        captive = {"proxy": directory.proxy, **worker.ready}
        return (
            *await doctor.examine_clients(directory, os.environ, command),
            await doctor.examine_captive(captive, echo, processes.token),
        )


@click.command("demo", short_help="Show Playhead at work in a minute: record, cut the network, replay, miss.")
@click.option(
    "--home", type=click.Path(path_type=Path), metavar="DIR", help="The directory for everything that the demo writes."
)
def demo_command(home: Path | None) -> None:
    """Record a real agent, stop the servers, and replay it with the network gone.

    A local stand-in for a model API and a small tool server answer an agent written with the official `openai` SDK. Nothing
    is sent beyond this machine, nothing is left running, and all that is written lies in one directory.
    """
    directory = home or Path(tempfile.gettempdir()) / f"playhead-demo-{os.geteuid()}"
    raise click.exceptions.Exit(asyncio.run(run_demo(directory, Screen(sys.stdout))))


COMMANDS = (env_command, ca_command, config_command, doctor_command, demo_command)
