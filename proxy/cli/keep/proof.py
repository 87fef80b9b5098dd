"""The commands about proof: verify, signing-key."""

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from calls.proof.checkpoint import InvalidNote, VerifierKey, parse_verifier_key
from proxy.anchor_settings import read_root_file
from proxy.cli.common import as_json, print_json, query_store, settings_from_flags, with_settings
from proxy.cli.run_completion import complete_recording
from proxy.commands.export import split_lines
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, NotFound, incomplete_reason, path_segment, resolve_run_name
from proxy.terminal.text import count_text, printable
from proxy.terminal.waiting import show_waiting
from store.bundle.bundle import BundleTooLarge
from store.datadir import DataDir
from store.proof.bundle_proof import NoProof, verify_bundle
from store.proof.run_check import RunCheck
from store.proof.signing_keys import find_log_keys, rotate_signing_key
from store.proof.verdict import conclude, verification_shape

EXIT_CODES = {"verified": 0, "failed": 1, "unproven": 3}
SEVERITY: Final = ("verified", "unproven", "failed")
PAGE: Final = 200
MOST_SHOWN: Final = 10
MOST_RUNS: Final = 50
MOST_EXCHANGES: Final = 1000
"""Runs, and exchanges of these, that are verified by one request."""

REPORT_EVERY: Final = 1.0
"""Seconds between two lines of progress."""


class _Key(click.ParamType[VerifierKey]):
    """A verifier key, or a file with one."""

    name = "KEY|FILE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> VerifierKey:
        if isinstance(value, VerifierKey):
            return value
        try:
            return parse_verifier_key(Path(value).read_text("utf-8") if Path(value).is_file() else value)
        except (InvalidNote, OSError, UnicodeDecodeError) as error:
            self.fail(f"{error}; `playhead signing-key` prints that of a data directory", param, ctx)


@click.command("verify", short_help="Show whether a run or bundle is as it was recorded.")
@with_settings
@as_json
@click.option(
    "--key",
    "keys",
    multiple=True,
    type=_Key(),
    help="Trust this public key alone, as `playhead signing-key` printed it. May be repeated. Default: the keys of this data directory.",
)
@click.option(
    "--witness",
    "witnesses",
    multiple=True,
    type=_Key(),
    help="Require that this witness has signed the checkpoint: its public key, NAME+ID+KEY or a file. May be repeated.",
)
@click.option(
    "--tsa-root",
    "root_file",
    type=click.Path(path_type=Path),
    help="Require a timestamp of the checkpoint by an authority that one of the root certificates in this PEM file vouches for.",
)
@click.option(
    "--all", "is_all", is_flag=True, help="Verify every run of the project, and whether all that were sealed are there."
)
@click.argument("recording", metavar="RUN|FILE|last", required=False, shell_complete=complete_recording)
def verify_command(
    recording: str | None,
    keys: Sequence[VerifierKey],
    witnesses: Sequence[VerifierKey],
    root_file: Path | None,
    is_all: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Show whether a run or bundle is as it was recorded: nothing altered, removed, inserted, reordered or cut off at the end.

    A file is checked by itself, without a store server or network. What a proof does not show is on the page docs/proof.md.
    --all looks into every run, one after another, and finds runs that somebody removed from the database.

    Exits with 0 if everything is verified, 1 if something does not fit, and 3 if something has no proof, such as a run that a Playhead
    without proofs recorded.

    \b
        playhead verify last
        playhead export night-run -o night-run.jsonl
        playhead verify night-run.jsonl --key auditor/playhead.key
        playhead verify night-run.jsonl --key auditor/playhead.key --witness witness.key --tsa-root authority.pem
        playhead verify --all
    """
    if is_all == (recording is not None) or (is_all and (witnesses or root_file)):
        raise click.UsageError("give RUN or FILE, or --all, to which --key may be added and nothing else.")
    file = Path(recording or ".")
    trust_of_flags = _Trust(_separate(keys, witnesses), None if root_file is None else _read_roots(root_file))
    if recording is None:
        texts = [str(key) for key in trust_of_flags.keys]
        verification = query_store(flags, lambda api: verify_all(api, texts))
    elif file.is_file():
        verification = _verify_file(file, trust_of_flags.with_keys(_own_keys(**flags)))
    elif keys or witnesses or root_file:
        trust = trust_of_flags.with_keys(_own_keys(**flags))
        verification = query_store(flags, lambda api: _verify_lines(_bundle_lines(api, recording), recording, trust))
    else:
        verification = query_store(flags, lambda api: _ask_server(api, recording))
    if as_json:
        print_json(verification)
    else:
        show_verification(verification)
    raise click.exceptions.Exit(EXIT_CODES[verification["verdict"]])


class _Trust(NamedTuple):
    """Whose word counts."""

    keys: Sequence[VerifierKey]
    roots: str | None

    def with_keys(self, own: Sequence[VerifierKey]) -> "_Trust":
        """Return the same with our own keys, if no key of a log was given."""
        has_log = any(key.kind == "log" for key in self.keys)
        return self if has_log else _Trust([*self.keys, *own], self.roots)


def _separate(keys: Sequence[VerifierKey], witnesses: Sequence[VerifierKey]) -> list[VerifierKey]:
    """Return all keys, each of the kind that its option takes."""
    if any(key.kind != "log" for key in keys):
        raise click.UsageError("--key takes the key of a store server; give that of a witness with --witness.")
    if any(key.kind != "witness" for key in witnesses):
        raise click.UsageError("--witness takes the key of a witness; give that of a store server with --key.")
    return [*keys, *witnesses]


def _read_roots(file: Path) -> str:
    try:
        return read_root_file(file)
    except ValueError as error:
        raise Failure(f"--tsa-root: {error}") from error


def _verify_file(file: Path, trust: _Trust) -> dict[str, Any]:
    if not any(key.kind == "log" for key in trust.keys):
        raise Failure(f"there is no key to check {file} with; give the public key of its store server: --key KEY")
    try:
        with file.open("rb") as lines, show_waiting(f"verifying {printable(str(file))}"):
            return _verify_lines(lines, str(file), trust)
    except OSError as error:
        raise Failure(f"cannot read {file}: {error.strerror}") from error


def _verify_lines(lines: Iterable[bytes], name: str, trust: _Trust) -> dict[str, Any]:
    try:
        return verification_shape(name, verify_bundle(lines, trust.keys, trust.roots))
    except BundleTooLarge as error:
        raise Failure(f"{printable(name)} was not verified: {error}") from error
    except NoProof:
        why = "it was exported with --no-proof, written by a test suite, or recorded by an earlier Playhead"
        click.echo(f"playhead: {printable(name)} has no proof: {why}", err=True)
        return verification_shape(name, conclude(RunCheck(), []))


def _own_keys(**flags: Any) -> list[VerifierKey]:
    settings = settings_from_flags(**flags)
    # Not opened, which would create it: whoever verifies a file may have nothing of Playhead's but this command.
    keys = find_log_keys(DataDir(settings.data.absolute()).keys / "proof")
    return keys.verifier_keys(settings.project) if keys else []


def _bundle_lines(api: Api, run: str) -> list[bytes]:
    name = resolve_run_name(api, run)
    return list(split_lines(api.stream_bytes(f"/runs/{path_segment(name)}/bundle")))


def verify_all(api: Api, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Verify the tree of the project, then each of its runs; the findings of all of them. Without keys, those of the store server are trusted."""
    trust = {"key": list(keys)} if keys else {}
    try:
        verification: dict[str, Any] = api.get_patiently("/verify", **trust)
    except NotFound as error:
        raise Failure("nothing was recorded in this project yet, so nothing is sealed") from error
    verification |= {"runs": 0, "unproven_runs": []}
    printed_at = time.monotonic()
    for names in _batch_runs(api.list_items("/runs", limit=PAGE, fields="id,exchanges")):
        # Runs that were erased meanwhile are left out.
        for one in api.get("/verifications", run=names, **trust)["items"]:
            _add_run(verification, one)
        if time.monotonic() - printed_at >= REPORT_EVERY:
            printed_at = time.monotonic()
            click.echo(f"playhead: verifying: {count_text(verification['runs'], 'run')} so far", err=True)
    return verification


def _batch_runs(items: Iterable[dict[str, Any]]) -> Iterator[list[str]]:
    """Yield the names of runs that are verified together."""
    names: list[str] = []
    exchanges = 0
    for item in items:
        if names and (len(names) == MOST_RUNS or exchanges + item["exchanges"] > MOST_EXCHANGES):
            yield names
            names, exchanges = [], 0
        names.append(item["id"])
        exchanges += item["exchanges"]
    if names:
        yield names


def _add_run(verification: dict[str, Any], one: dict[str, Any]) -> None:
    """Add what verifying a run has shown."""
    run = one["run"]
    verification["runs"] += 1
    verification["findings"] += [each | {"element": f"run {run}: {each['element']}"} for each in one["findings"]]
    if one["verdict"] == "unproven":
        verification["unproven_runs"].append(run)
    verification["verdict"] = max(verification["verdict"], one["verdict"], key=SEVERITY.index)


def _ask_server(api: Api, run: str) -> dict[str, Any]:
    name = resolve_run_name(api, run)
    if missing := incomplete_reason(api, name):
        click.echo(f"playhead: not all that was recorded is stored yet: {printable(missing)}", err=True)
    try:
        found: dict[str, Any] = api.get_patiently(f"/runs/{path_segment(name)}/verify")
    except NotFound as error:
        raise Failure(f"there is no run or file {run} here; `playhead ls` lists what was recorded") from error
    return found


def show_verification(verification: dict[str, Any]) -> None:
    """Print the result of a verification."""
    click.echo(f"{printable(verification['run'] or 'all runs')}: {_summary(verification)}")
    for seal in verification["seals"]:
        at = f", noted at {seal['signed_at']} (this time is not proven)" if seal["signed_at"] else ""
        click.echo(f"  sealed in checkpoint {seal['size']} of {printable(seal['origin'])}{at}")
        if seal["unsealed"]:
            click.echo(f"  {count_text(seal['unsealed'], 'record')} came later and are not sealed yet")
        for one in seal["anchors"]:
            if one["problem"] is None:
                click.echo(f"  {_anchor_text(one)}")
    if verification["signed"] is False:
        click.echo(
            "  not signed as a whole: what is derived (its calls, keys, envelope and the run's times) may have been changed"
        )
    details = {one["detail"] for one in verification["findings"]}
    for one in verification.get("asked", ()):
        if one["problem"] is not None and one["problem"] not in details:
            click.echo(f"  not vouched for yet: {printable(one['problem'])}")
    for one in verification["erased"]:
        at = f", {one['at']}" if one["at"] else ""
        rule = f", by retention: {printable(one['rule'])}" if one.get("rule") else ""
        click.echo(f"  erased: {one['part']} of {printable(one['id'] or 'the run')}{at}{rule}")
    for one in verification["findings"]:
        click.echo(f"  {one['change']}: {printable(one['element'])}: {printable(one['detail'])}")


def _anchor_text(anchor: dict[str, Any]) -> str:
    """Say who vouches for a checkpoint."""
    if anchor["kind"] == "witness":
        text, option = f"cosigned by {printable(anchor['by'])}, {anchor['at']}", "--witness"
    else:
        by = f" by {printable(anchor['by'])}" if anchor["by"] else ""
        text, option = f"timestamp {anchor['at']}{by}", "--tsa-root"
    return text if anchor["checked"] else f"{text} (not checked: give {option})"


def _summary(verification: dict[str, Any]) -> str:
    match verification["verdict"]:
        case "verified":
            if verification["run"] is None:
                return (
                    f"verified; {count_text(verification['runs'], 'run')} looked into, and what the {verification['proven']:,} leaves of the signed tree"
                    " stand for is there, or was erased"
                )
            if verification["proven"] == 1:
                return "verified; its one exchange or gap is as it was recorded"
            return f"verified; its {verification['proven']:,} exchanges and gaps are as they were recorded"
        case "failed":
            return f"NOT as it was recorded: {count_text(len(verification['findings']), 'finding')}"
        case _:
            if unproven := verification.get("unproven_runs"):
                names = ", ".join(map(printable, unproven[:MOST_SHOWN])) + (", …" if len(unproven) > MOST_SHOWN else "")
                return f"unproven; of {count_text(verification['runs'], 'run')}, {len(unproven):,} have something without a record or seal: {names}"
            why = (
                f"{verification['unproven']:,} of its exchanges and gaps have no record"
                if verification["unproven"]
                else "nothing, or not everything, is sealed"
            )
            return f"unproven; {why}"


@click.group("signing-key", invoke_without_command=True, short_help="Print or rotate the key that signs checkpoints.")
@with_settings
@as_json
@click.pass_context
def signing_key_command(ctx: click.Context, /, as_json: bool, **flags: Any) -> None:
    """Print the public key of this data directory's store server, with which anybody can verify bundles of a project.

    Give it to your auditor before you need it: a key that comes with a bundle proves nothing.
    """
    ctx.obj = flags
    if ctx.invoked_subcommand is not None:
        return
    settings = settings_from_flags(**flags)
    keys = CommandProcesses(settings).read_secret(DataDir.signing_keys).verifier_keys(settings.project)
    if as_json:
        print_json([str(key) for key in keys])
        return
    click.echo(str(keys[0]))


@signing_key_command.command("rotate", short_help="Make a new key, which signs from the next start on.")
@with_settings
@click.pass_obj
def rotate_command(outer: dict[str, Any], /, **flags: Any) -> None:
    """Make a new signing key. The store server uses it from its next start on; the key before it signs beside it until the next rotation,
    so that who knows that one can verify new checkpoints meanwhile."""
    settings = settings_from_flags(**(outer | {name: value for name, value in flags.items() if value is not None}))
    keys = CommandProcesses(settings).read_secret(lambda data: rotate_signing_key(data.signing_key_directory()))
    click.echo(str(keys.verifier_keys(settings.project)[0]))
    click.echo("playhead: the new key signs from the next start of the store server on", err=True)


COMMANDS = (verify_command, signing_key_command)
