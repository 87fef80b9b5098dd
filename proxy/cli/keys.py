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
from calls.keys.divergence import readable
from proxy.cli.common import as_json, print_json, settings, with_settings
from proxy.cli.profiles import user_profiles
from proxy.commands.calibrate import Outcome, calibrated, exchanges, is_file, write
from proxy.errors import Failure
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.store_client import Api, meant
from proxy.settings import Settings
from proxy.terminal.text import counted, print_table, printable, shortened


@click.command("calibrate", short_help="Find what differs between two recordings of the same work.")
@with_settings
@as_json
@click.option("--write", "consent", is_flag=True, help="Write the proposed rules to playhead.toml without asking.")
@click.argument("one", metavar="RUN|BUNDLE")
@click.argument("other", metavar="RUN|BUNDLE")
def calibrate_command(one: str, other: str, consent: bool, as_json: bool, **flags: Any) -> None:
    """Compare two recordings of the same work, list what differs in their requests, and propose rules under which they agree.

    The calls are aligned by where they go and what they say. Only what changes a key is listed. Rules are proposed for what
    looks made anew for every run (uuids, timestamps, counters, sessions); they are a guess, for you to judge. With --write,
    or when you say yes, they are added to playhead.toml, where nothing else is touched.

    Exits with 0 where every pair of calls has, or would have, one key, and with 1 where some stay apart.

    \b
        playhead record --run a -- python agent.py
        playhead record --run b -- python agent.py
        playhead calibrate a b
    """
    found = settings(**flags)
    place = found.config or flags["config"] or Path("playhead.toml")
    toml = _text(place)
    outcome = calibrated(
        *asyncio.run(_both(found, one, other)), toml, f"Written by `playhead calibrate {one} {other}`."
    )
    if not as_json:
        _show(outcome)
    agreed = outcome.text is not None and (consent or (not as_json and _asked(place)))
    if agreed and outcome.text is not None:
        write(place, outcome.text, toml)
    if as_json:
        print_json(_told(outcome, place if agreed else None))
    elif agreed:
        click.echo(
            f"wrote {place}; a `playhead up` that runs goes by the old rules until it is started again", err=True
        )
    raise click.exceptions.Exit(1 if outcome.after.apart else 0)


async def _both(found: Settings, one: str, other: str) -> tuple[Any, Any]:
    if is_file(one) and is_file(other):
        return exchanges(None, one), exchanges(None, other)
    async with CommandProcesses(found) as house:
        with await house.api() as api:
            return await asyncio.to_thread(lambda: (exchanges(api, one), exchanges(api, other)))


def _text(place: Path) -> str:
    try:
        return place.read_bytes().decode() if place.exists() else ""
    except OSError as error:
        raise Failure(f"cannot read {place}: {error.strerror}") from error


def _asked(place: Path) -> bool:
    """Whether the person at the terminal wants it written; nobody there is no."""
    if not sys.stdin.isatty():
        click.echo(f"nothing was written; to add this to {place}, run it again with --write", err=True)
        return False
    return click.confirm(f"Add this to {place}?", default=False, err=True)


def _show(outcome: Outcome) -> None:
    found = outcome.found
    click.echo(_sentence(found.agreement))
    for name, steps in zip(("first", "second"), found.alone, strict=True):
        if steps:
            listed = ", ".join(map(str, steps[:10])) + (", …" if len(steps) > 10 else "")
            click.echo(f"only in the {name}: {counted(len(steps), 'call')} (step {listed})")
    if found.findings:
        click.echo()
        print_table(("WHERE", "DIFFERS", "COUNTS AS", "WHY", "VALUES"), [_row(each) for each in found.findings])
    if outcome.text is not None:
        click.echo(f"\n{printable_lines(outcome.fresh)}")
        click.echo(f"With these rules: {_sentence(outcome.after)}")


def _sentence(agreement: KeyAgreement) -> str:
    echoes = f", {agreement.echoes} apart only by what earlier answers gave" if agreement.echoes else ""
    calls = " and ".join(f"{number:,}" for number in agreement.calls)
    return (
        f"{calls} calls, {counted(agreement.pairs, 'pair')} of the same work: "
        f"{agreement.agree:,} with one key{echoes}, {agreement.apart:,} apart"
    )


def _row(found: Finding) -> tuple[str, ...]:
    where = found.path if found.part == "body" else f"{found.part} {found.path}"
    values = " → ".join(shortened(_glance(value), 32) for value in (found.one, found.other))
    return readable(where), f"{found.times} of {found.of}", found.guess.field_class, found.guess.reason, values


def _glance(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value).decode()


def printable_lines(text: str) -> str:
    """Lines of a file for a terminal."""
    return "\n".join(map(printable, text.splitlines())) + "\n"


def _told(outcome: Outcome, written: Path | None) -> dict[str, Any]:
    found = outcome.found
    return {
        "before": _counts(found.agreement),
        "after": _counts(outcome.after),
        "alone": [list(steps) for steps in found.alone],
        "fields": [_finding(each) for each in found.findings],
        "proposed": outcome.fresh or None,
        "written": str(written) if written else None,
    }


def _counts(agreement: KeyAgreement) -> dict[str, Any]:
    return {
        "calls": list(agreement.calls),
        "pairs": agreement.pairs,
        "agree": agreement.agree,
        "echoes": agreement.echoes,
        "apart": agreement.apart,
    }


def _finding(found: Finding) -> dict[str, Any]:
    return {
        "profile": found.profile,
        "host": found.host,
        "part": found.part,
        "path": found.path,
        "class": found.guess.field_class,
        "reason": found.guess.reason,
        "differs": found.times,
        "of": found.of,
        "values": json.loads(dumps([found.one, found.other])),
    }


@click.command("rekey", short_help="Key stored calls again under the rules in force.")
@with_settings
@as_json
@click.option("--all", "every", is_flag=True, help="All runs.")
@click.option("--dry-run", is_flag=True, help="Only tell what would become of them.")
@click.argument("runs", nargs=-1, metavar="[RUN|last]…")
def rekey_command(runs: tuple[str, ...], every: bool, dry_run: bool, as_json: bool, **flags: Any) -> None:
    """Key stored calls again under the rules in force: those that come with Playhead and those in playhead.toml.

    Names the recordings that now collide (calls that had keys of their own share one, with different answers: which of them a
    request is given hangs on the order) and those that part (calls that shared a key no longer do). A run is changed whole or not
    at all; done twice it is done once. A replay goes by the rules in force in any case: this is for what is stored, searched and
    exported.

    With --dry-run nothing is changed, and the exit code is 1 where recordings would collide or part.

    \b
        playhead rekey --all --dry-run
        playhead rekey last
    """
    if bool(runs) == every:
        raise click.UsageError("Name the runs, or say --all.")
    found = settings(**flags)
    wanted = {"dry_run": dry_run, "profiles": user_profiles(found).digest}
    told = asyncio.run(_rekeyed(found, None if every else runs, wanted, quiet=as_json))
    end = told.pop()
    if as_json:
        print_json({**end, "items": told})
    else:
        _show_rekeyed(told, end)
    if end["failed"]:
        raise Failure(f"{counted(end['failed'], 'run')} could not be keyed again, and stayed as it was (see above)")
    raise click.exceptions.Exit(1 if dry_run and (end["collide"] or end["part"]) else 0)


async def _rekeyed(
    found: Settings, runs: tuple[str, ...] | None, wanted: dict[str, Any], *, quiet: bool
) -> list[dict[str, Any]]:
    async with CommandProcesses(found) as house:
        with await house.api() as api:
            return await asyncio.to_thread(_followed, api, runs, wanted, quiet)


def _followed(api: Api, runs: tuple[str, ...] | None, wanted: dict[str, Any], quiet: bool) -> list[dict[str, Any]]:
    """What was told of each run, and the sums at last; how far it is, on a terminal, meanwhile."""
    named = None if runs is None else [meant(api, run) for run in runs]
    told: list[dict[str, Any]] = []
    with Progress(shown=not quiet and sys.stderr.isatty()) as progress:
        for line in api.lines("/rekey", {**wanted, "runs": named}):
            if "done" in line:
                progress.say(f"run {line['run']}: {counted(line['done'], 'exchange')}")
            else:
                told.append(line)
    if not told or not told[-1].get("end"):
        raise Failure("the store server stopped before all was done; what it did is whole: run the command again")
    return told


class Progress:
    """One line on stderr that is written over, and wiped in the end."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown

    def say(self, words: str) -> None:
        """Show these words in place of those before."""
        if self._shown:
            click.echo(f"\r\x1b[2K{printable(words)}", nl=False, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown:
            click.echo("\r\x1b[2K", nl=False, err=True)


def _show_rekeyed(told: list[dict[str, Any]], end: dict[str, Any]) -> None:
    notable = [run for run in told if run["counts"].get("changed") or run["counts"].get("failed")]
    if notable:
        head = ("RUN", "CALLS", "CHANGED", "COLLIDE", "PART")
        counts = ("calls", "changed", "collide", "part")
        print_table(head, [(run["run"], *(str(run["counts"].get(name, "-")) for name in counts)) for run in notable])
        click.echo()
    for run in told:
        for words in _words(run):
            click.echo(f"run {printable(run['run'])}: {words}")
    would = "would have" if end["dry_run"] else "have"
    click.echo(
        f"{counted(end['calls'], 'call')} in {counted(end['runs'], 'run')}: "
        f"{end['changed']:,} {would} another key, {end['unchanged']:,} the same"
    )


def _words(run: dict[str, Any]) -> Iterator[str]:
    """What a person must know about a run."""
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
