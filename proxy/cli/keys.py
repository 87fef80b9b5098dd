"""The commands about keys: calibrate, rekey."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click

from calls.calibrate import Agreement, Finding
from calls.json import dumps
from proxy.calibration import Outcome, calibrated, exchanges, is_file, write
from proxy.cli.common import as_json, print_json, settings, with_settings
from proxy.errors import Failure
from proxy.house import House
from proxy.settings import Settings
from proxy.text import counted, print_table, printable, shortened


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
    async with House(found) as house:
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


def _sentence(agreement: Agreement) -> str:
    echoes = f", {agreement.echoes} apart only by what earlier answers gave" if agreement.echoes else ""
    calls = " and ".join(f"{number:,}" for number in agreement.calls)
    return (
        f"{calls} calls, {counted(agreement.pairs, 'pair')} of the same work: "
        f"{agreement.agree:,} with one key{echoes}, {agreement.apart:,} apart"
    )


def _row(found: Finding) -> tuple[str, ...]:
    where = found.path if found.part == "body" else f"{found.part} {found.path}"
    values = " → ".join(shortened(_glance(value), 32) for value in (found.one, found.other))
    return where, f"{found.times} of {found.of}", found.guess.field_class, found.guess.reason, values


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


def _counts(agreement: Agreement) -> dict[str, Any]:
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


COMMANDS = (calibrate_command,)
