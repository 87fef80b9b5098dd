"""The command `token`: print the tokens that Playhead makes itself; create, list and revoke others."""

import re
import secrets
import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from calls.project_runs import PROJECT_NAME
from proxy.cli.common import RUN_ID, as_json, print_json, settings_from_flags, with_settings
from proxy.cli.run_completion import complete_run
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.terminal.text import print_table, printable
from store.access.api_tokens import ALL_PROJECTS, MAX_NAME, SCOPES, ApiToken, ApiTokens, Scope, TokenFileError
from store.datadir import DataDir

_SECONDS: Final = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_NANOSECONDS: Final = 1_000_000_000
_NAME: Final = re.compile(rf"[\w.@-]{{1,{MAX_NAME}}}")


class _Scopes(click.ParamType[tuple[Scope, ...]]):
    """Scopes separated by commas."""

    name = "SCOPE[,SCOPE…]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[Scope, ...]:
        if isinstance(value, tuple):
            return value
        names = [name.strip() for name in str(value).split(",")]
        for name in names:
            if name not in SCOPES:
                self.fail(f"{name!r} is not a scope: use {', '.join(SCOPES)}", param, ctx)
        return tuple(scope for scope in SCOPES if scope in names)


class _Project(click.ParamType[str]):
    """A project, or all."""

    name = "NAME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value != ALL_PROJECTS and not PROJECT_NAME.fullmatch(value):
            self.fail(f"{value!r} is not a name of a project: use 1 to 63 of a-z 0-9 . _ -, or '*' for all", param, ctx)
        return str(value)


class _Duration(click.ParamType[int]):
    """A time from now, in nanoseconds."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"([1-9]\d{0,4})([mhdw])", str(value))
        if found is None:
            self.fail(f"{value!r} is not a time from now: write 30m, 12h, 30d or 52w", param, ctx)
        return int(found[1]) * _SECONDS[found[2]] * _NANOSECONDS


@click.group(
    "token",
    invoke_without_command=True,
    short_help="Print, create, list or revoke tokens of the REST API and of the proxy.",
)
@with_settings
@as_json
@click.option(
    "--recording", is_flag=True, help="Print the recording token, which goes into a proxy's URL and can only record."
)
@click.option(
    "--run",
    "run_id",
    type=RUN_ID,
    metavar="ID",
    shell_complete=complete_run,
    help="Print the token that records into this run alone.",
)
@click.option("--login-url", is_flag=True, help="Print a link that logs a browser in to the web page, once.")
@click.pass_context
def token_command(
    ctx: click.Context, /, recording: bool, run_id: str | None, login_url: bool, as_json: bool, **flags: Any
) -> None:
    """Print the token that the REST API requires. It is created on first use and kept in the data directory.

    With it one can read and delete all recordings. It goes into a header:

    \b
        curl -H "Authorization: Bearer $(playhead token)" http://127.0.0.1:8081/v1/runs

    People and programs that need less get a token of their own, for one project and with an end:

    \b
        playhead token create dashboards --project web --scope runs:read --expires 30d

    Agents do not need one: `playhead record` and `env` give them what they need. An agent on another machine gets the recording token
    as the password in its proxy's URL; it can record, but neither read nor delete. A token with the scope `record` does the same, and
    records into its own project:

    \b
        HTTPS_PROXY=http://RUN:$(playhead token --recording)@HOST:8080

    A run that `record`, `fork` or `resume` began takes further requests only with its own token (--run RUN).

    The web page of the running `up` asks for the token once. A link that logs a browser in, valid once and for 5 minutes:

    \b
        playhead token --login-url
    """
    if ctx.invoked_subcommand is not None:
        ctx.obj = flags
        return
    if recording + login_url + bool(run_id) > 1:
        raise click.UsageError("--recording, --run and --login-url print different things: give one of them.")
    processes = CommandProcesses(settings_from_flags(**flags))
    if login_url:
        facts = {"token": _login_url(processes)}
    elif run_id:
        facts = {"token": processes.run_token(run_id), "run": run_id}
    elif recording:
        facts = {
            "token": processes.read_secret(DataDir.recording_token),
            "file": str(processes.data.recording_token_file),
        }
    else:
        facts = {"token": processes.read_secret(DataDir.api_token), "file": str(processes.data.api_token_file)}
    if as_json:
        print_json(facts)
        return
    click.echo(facts["token"])


def _login_url(processes: CommandProcesses) -> str:
    """Return a link to the web page of the running `up`. Its code is in the fragment, which browsers send to nobody."""
    note = processes.find_up()
    if note is None:
        raise Failure("no `playhead up` runs on this data directory, so there is no web page: start one")
    api = str(note["api"])
    code = processes.api_client(api).post("/session/codes")["code"]
    return f"{api}/login#code={code}"


@token_command.command("create", short_help="Create a token with scopes, for one project or all.")
@with_settings
@as_json
@click.option(
    "--scope",
    "scopes",
    type=_Scopes(),
    required=True,
    help="What it allows: runs:read (lists, costs, names of tools), bodies:read (prompts, answers, headers), runs:write (name, label,"
    " import), replay, record (through the proxy), admin (all of the API, also delete and the audit log).",
)
@click.option("--expires", type=_Duration(), help="When it ends: 12h, 30d, 52w from now. Default: never.")
@click.option("--all-projects", is_flag=True, help="For all projects, in place of --project.")
@click.argument("name", required=False)
@click.pass_obj
def create_command(
    outer: dict[str, Any],
    /,
    name: str | None,
    scopes: tuple[Scope, ...],
    expires: int | None,
    all_projects: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Create a token, and print it. It is not stored, and cannot be printed again. Lists and the audit log show its NAME.

    \b
        playhead token create dashboards --project web --scope runs:read,bodies:read --expires 30d
        playhead token create ci-agents --project web --scope record
    """
    name = name or f"token-{secrets.token_hex(3)}"
    if not _NAME.fullmatch(name):
        raise click.UsageError(f"{name!r} cannot be a token's name: use 1 to {MAX_NAME} letters, digits and . _ @ -")
    all_flags = _merge_flags(outer, flags)
    settings = settings_from_flags(**all_flags)
    if all_projects and all_flags.get("project"):
        raise click.UsageError("--all-projects and --project exclude each other: give one of them.")
    now = time.time_ns()
    tokens = CommandProcesses(settings).read_secret(DataDir.api_tokens)
    project = ALL_PROJECTS if all_projects else settings.project
    try:
        token, created_token = tokens.create(name, project, scopes, now, expires and now + expires)
    except TokenFileError as error:
        raise Failure(str(error)) from error
    if as_json:
        print_json({"token": token} | _token_facts(created_token, now))
        return
    click.echo(token)
    end = f"until {_time_text(created_token.expires_at)}" if created_token.expires_at else "until it is revoked"
    of = "all projects" if all_projects else f"project {project}"
    click.echo(
        f"playhead: {printable(name)}: {', '.join(created_token.scopes)} of {of}, {end}; keep it: it is not stored",
        err=True,
    )


def _created_tokens(flags: dict[str, Any]) -> ApiTokens:
    processes = CommandProcesses(settings_from_flags(**flags))
    processes.require_data_directory()
    return processes.read_secret(DataDir.api_tokens)


@token_command.command("list", short_help="List the tokens that were created.")
@with_settings
@as_json
@click.pass_obj
def list_command(outer: dict[str, Any], /, as_json: bool, **flags: Any) -> None:
    """List the tokens that were created, with their projects and scopes; not the tokens themselves."""
    now = time.time_ns()
    tokens = _created_tokens(_merge_flags(outer, flags))
    try:
        found = [_token_facts(token, now) for token in tokens.list_tokens()]
    except TokenFileError as error:
        raise Failure(str(error)) from error
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("no token was created yet: playhead token create NAME --scope runs:read", err=True)
        return
    rows = [
        (one["name"], one["id"], one["project"], ", ".join(one["scopes"]), one["state"], one["expires_at"] or "never")
        for one in found
    ]
    print_table(("NAME", "ID", "PROJECT", "SCOPES", "STATE", "EXPIRES"), rows)


@token_command.command("revoke", short_help="Revoke a token: it is refused from now on.")
@with_settings
@click.argument("name", metavar="NAME|ID")
@click.pass_obj
def revoke_command(outer: dict[str, Any], /, name: str, **flags: Any) -> None:
    """Revoke the token with this name or id. It is refused from the next request on; its name stays in the audit log."""
    tokens = _created_tokens(_merge_flags(outer, flags))
    try:
        revoked = tokens.revoke(name, time.time_ns())
    except TokenFileError as error:
        raise Failure(str(error)) from error
    click.echo(f"playhead: revoked {printable(revoked.name)} ({revoked.id})", err=True)


def _merge_flags(outer: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a subcommand: its own, else those given before its name."""
    return outer | {name: value for name, value in own.items() if value is not None}


def _token_facts(token: ApiToken, now: int) -> dict[str, Any]:
    return {
        "id": token.id,
        "name": token.name,
        "project": token.project,
        "scopes": list(token.scopes),
        "state": token.state(now),
        "created_at": _time_text(token.created_at),
        "expires_at": token.expires_at and _time_text(token.expires_at),
    }


def _time_text(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns // _NANOSECONDS, UTC).isoformat().replace("+00:00", "Z")


COMMANDS = (token_command,)
