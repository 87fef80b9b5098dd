"""The commands about keys: calibrate, rekey."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import click

from calls.codec.json import dumps
from calls.comparison.calibrate import Finding, KeyAgreement
from calls.keys.divergence import shorten_pointer
from proxy.cli.common import as_json, print_json, reading_redactor, settings_from_flags, user_profiles, with_settings
from proxy.cli.run_completion import complete_recording, complete_run
from proxy.commands.calibrate import (
    CalibrationOutcome,
    calibrate_recordings,
    is_recording_file,
    load_exchanges,
    write_rules,
)
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, resolve_run_name
from proxy.settings import Settings
from proxy.terminal.text import count_text, print_table, printable, shorten


@click.command("calibrate", short_help="Find what differs between two recordings of the same work.")
@with_settings
@as_json
@click.option("--write", "consent", is_flag=True, help="Add the proposed rules to playhead.toml without asking.")
@click.argument("one", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
@click.argument("other", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
def calibrate_command(one: str, other: str, consent: bool, as_json: bool, **flags: Any) -> None:
    """Compare two recordings of the same work, list what differs in their requests, and propose rules under which they agree.

    Calls are aligned by destination and content. Only differences that change a key are listed. Rules are proposed for values that
    seem to be new in every run (uuids, timestamps, counters, sessions); they are a guess, for you to judge. With --write, or if you
    confirm, they are added to playhead.toml; nothing else in it changes.

    Exits with 0 if the calls of every pair have, or would have, the same key, and with 1 if some pairs still differ.

    \b
        playhead record --run a -- python agent.py
        playhead record --run b -- python agent.py
        playhead calibrate a b
    """
    found = settings_from_flags(**flags)
    toml_path = found.config or flags["config"] or Path("playhead.toml")
    toml = _read_text(toml_path)
    outcome = calibrate_recordings(
        *asyncio.run(_load_both(found, one, other)), toml, f"Written by `playhead calibrate {one} {other}`."
    )
    if not as_json:
        _show_outcome(outcome)
    agreed = outcome.text is not None and (consent or (not as_json and _is_confirmed(toml_path)))
    if agreed and outcome.text is not None:
        write_rules(toml_path, outcome.text, toml)
    if as_json:
        print_json(_outcome_json(outcome, toml_path if agreed else None))
    elif agreed:
        click.echo(
            f"wrote {toml_path}; a `playhead up` that runs goes by the old rules until it is started again", err=True
        )
    raise click.exceptions.Exit(1 if outcome.after.misses else 0)


async def _load_both(settings: Settings, one: str, other: str) -> tuple[Any, Any]:
    redactor = reading_redactor(settings, user_profiles(settings))
    if is_recording_file(one) and is_recording_file(other):
        return load_exchanges(None, one, redactor), load_exchanges(None, other, redactor)
    async with CommandProcesses(settings) as processes:
        with await processes.connect_store_server() as api:
            return await asyncio.to_thread(
                lambda: (load_exchanges(api, one, redactor), load_exchanges(api, other, redactor))
            )


def _read_text(toml_path: Path) -> str:
    try:
        return toml_path.read_bytes().decode() if toml_path.exists() else ""
    except OSError as error:
        raise Failure(f"cannot read {toml_path}: {error.strerror}; name another file with --config") from error


def _is_confirmed(toml_path: Path) -> bool:
    """Whether the user confirms the change; without a terminal, no."""
    if not sys.stdin.isatty():
        click.echo(f"nothing was written; to add this to {toml_path}, run it again with --write", err=True)
        return False
    return click.confirm(f"Add this to {toml_path}?", default=False, err=True)


def _show_outcome(outcome: CalibrationOutcome) -> None:
    found = outcome.found
    click.echo(_agreement_sentence(found.agreement))
    for name, steps in zip(("first", "second"), found.unpaired_steps, strict=True):
        if steps:
            listed = ", ".join(map(str, steps[:10])) + (", …" if len(steps) > 10 else "")
            click.echo(f"only in the {name}: {count_text(len(steps), 'call')} (step {listed})")
    if found.findings:
        click.echo()
        print_table(("WHERE", "DIFFERS", "COUNTS AS", "WHY", "VALUES"), [_finding_row(each) for each in found.findings])
    if outcome.text is not None:
        click.echo(f"\n{printable_lines(outcome.added_text)}")
        click.echo(f"With these rules: {_agreement_sentence(outcome.after)}")


def _agreement_sentence(agreement: KeyAgreement) -> str:
    echoes = f", {agreement.echoes} apart only by what earlier answers gave" if agreement.echoes else ""
    calls = " and ".join(f"{number:,}" for number in agreement.calls)
    return (
        f"{calls} calls, {count_text(agreement.pairs, 'pair')} of the same work: "
        f"{agreement.agree:,} with one key{echoes}, {agreement.misses:,} apart"
    )


def _finding_row(finding: Finding) -> tuple[str, ...]:
    where = finding.path if finding.part == "body" else f"{finding.part} {finding.path}"
    values = " → ".join(shorten(_value_text(value), 32) for value in (finding.one, finding.other))
    return (
        shorten_pointer(where),
        f"{finding.times} of {finding.of}",
        finding.guess.field_class,
        finding.guess.reason,
        values,
    )


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def printable_lines(text: str) -> str:
    """Make the lines of a file safe to print."""
    return "\n".join(map(printable, text.splitlines())) + "\n"


def _outcome_json(outcome: CalibrationOutcome, written: Path | None) -> dict[str, Any]:
    found = outcome.found
    return {
        "before": _agreement_json(found.agreement),
        "after": _agreement_json(outcome.after),
        "alone": [list(steps) for steps in found.unpaired_steps],
        "fields": [_finding_json(each) for each in found.findings],
        "proposed": outcome.added_text or None,
        "written": str(written) if written else None,
    }


def _agreement_json(agreement: KeyAgreement) -> dict[str, Any]:
    return {
        "calls": list(agreement.calls),
        "pairs": agreement.pairs,
        "agree": agreement.agree,
        "echoes": agreement.echoes,
        "apart": agreement.misses,
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {
        "profile": finding.profile,
        "host": finding.host,
        "part": finding.part,
        "path": finding.path,
        "class": finding.guess.field_class,
        "reason": finding.guess.reason,
        "differs": finding.times,
        "of": finding.of,
        "values": json.loads(dumps([finding.one, finding.other])),
    }


@click.command("rekey", short_help="Key stored calls again under the rules in force.")
@with_settings
@as_json
@click.option("--all", "every", is_flag=True, help="Key all runs again.")
@click.option("--dry-run", is_flag=True, help="Print the result without changing anything.")
@click.argument("runs", nargs=-1, metavar="[RUN|last]…", shell_complete=complete_run)
def rekey_command(runs: tuple[str, ...], every: bool, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Key stored calls again under the rules in force: those that come with Playhead and those in playhead.toml.

    Lists the calls that now collide (they had keys of their own and now share one, with different answers, so that the order decides
    which of them a request gets) and those that part (they shared a key and no longer do). Each run is changed completely or not at
    all. A replay uses the rules in force in any case: rekey is for what is stored, searched and exported.

    With --dry-run nothing is changed, and the exit code is 1 if calls would collide or part.

    \b
        playhead rekey --all --dry-run
        playhead rekey last
    """
    if bool(runs) == every:
        raise click.UsageError("No run is named: name runs, or give --all alone.")
    found = settings_from_flags(**flags)
    rekey_options = {"dry_run": dry_run, "profiles": user_profiles(found).digest}
    results = asyncio.run(_rekey_runs(found, None if every else runs, rekey_options, quiet=as_json))
    end = results.pop()
    if as_json:
        print_json({**end, "items": results})
    else:
        _show_rekey(results, end)
    if end["failed"]:
        raise Failure(
            f"{count_text(end['failed'], 'run')} could not be keyed again and stayed unchanged, for the reasons above"
        )
    raise click.exceptions.Exit(1 if dry_run and (end["collide"] or end["part"]) else 0)


async def _rekey_runs(
    settings: Settings, runs: tuple[str, ...] | None, rekey_options: dict[str, Any], *, quiet: bool
) -> list[dict[str, Any]]:
    async with CommandProcesses(settings) as processes:
        with await processes.connect_store_server() as api:
            return await asyncio.to_thread(_follow_rekey, api, runs, rekey_options, quiet)


def _follow_rekey(
    api: Api, runs: tuple[str, ...] | None, rekey_options: dict[str, Any], quiet: bool
) -> list[dict[str, Any]]:
    """Return the result of each run and the totals. Show the progress on a terminal."""
    run_names = None if runs is None else [resolve_run_name(api, run) for run in runs]
    results: list[dict[str, Any]] = []
    with Progress(is_shown=not quiet and sys.stderr.isatty()) as progress:
        for line in api.post_for_lines("/rekey", {**rekey_options, "runs": run_names}):
            if "done" in line:
                progress.say(f"run {line['run']}: {count_text(line['done'], 'exchange')}")
            else:
                results.append(line)
    if not results or not results[-1].get("end"):
        raise Failure(
            "the store server stopped before all runs were done; those that were done are complete: run the command again"
        )
    return results


class Progress:
    """A progress line on stderr that is overwritten and cleared at the end."""

    def __init__(self, *, is_shown: bool) -> None:
        self._shown = is_shown

    def say(self, words: str) -> None:
        """Show a text in place of the last one."""
        if self._shown:
            click.echo(f"\r\x1b[2K{printable(words)}", nl=False, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)


def _show_rekey(results: list[dict[str, Any]], end: dict[str, Any]) -> None:
    notable = [run for run in results if run["counts"].get("changed") or run["counts"].get("failed")]
    if notable:
        head = ("RUN", "CALLS", "CHANGED", "COLLIDE", "PART")
        counts = ("calls", "changed", "collide", "part")
        print_table(head, [(run["run"], *(str(run["counts"].get(name, "-")) for name in counts)) for run in notable])
        click.echo()
    for run in results:
        for words in _run_notes(run):
            click.echo(f"run {printable(run['run'])}: {words}")
    would = "would have" if end["dry_run"] else "have"
    click.echo(
        f"{count_text(end['calls'], 'call')} in {count_text(end['runs'], 'run')}: "
        f"{end['changed']:,} {would} another key, {end['unchanged']:,} the same"
    )


def _run_notes(run: dict[str, Any]) -> Iterator[str]:
    """Yield what the user should know about a run."""
    if "failed" in run:
        yield printable(run["failed"])
        return
    for met in run["collide"]:
        steps = ", ".join(map(str, met["steps"]))
        yield f"steps {steps} had keys of their own and now share one, with {met['answers']} different answers"
    for parted in run["part"]:
        groups = " | ".join(", ".join(map(str, steps)) for steps in parted["steps"])
        yield f"steps {groups} had one key and now have {len(parted['steps'])}"
    for kind in ("collide", "part"):
        if (more := run["counts"][kind] - len(run[kind])) > 0:
            yield f"and {more} more that {kind}"


COMMANDS = (calibrate_command, rekey_command)
