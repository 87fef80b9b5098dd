"""The command that checks what runs did: check."""

import asyncio
from pathlib import Path
from typing import Any, Final

import click

from calls.checking.check import worst_verdict
from calls.redaction.redactor import Redactor
from proxy.cli.common import as_json, print_json, settings_from_flags, step_reader, with_settings
from proxy.cli.run_completion import complete_recording
from proxy.commands.check import check_recordings, propose_checks, read_spec
from proxy.errors import Failure, unwritable_file
from proxy.processes.command_processes import CommandProcesses
from proxy.terminal.render_check import check_json, junit_xml, show_check
from proxy.terminal.table import stdout_sheet
from proxy.terminal.text import printable
from store.diff.steps import StepReader

EXIT_CODES: Final = {"pass": 0, "fail": 1, "unknown": 3}


@click.command("check", short_help="Check what runs did against rules: tools, targets, costs, answers.")
@with_settings
@as_json
@click.option(
    "--spec",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("checks.toml"),
    metavar="FILE",
    help="The rules. Default: ./checks.toml.",
)
@click.option("--init", "is_init", is_flag=True, help="Write a spec that these runs satisfy, instead of checking them.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --init: the file to write. It must not exist. Default: standard output.",
)
@click.option(
    "--junit",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write the results as JUnit XML, which CI systems show.",
)
@click.argument("recordings", metavar="RUN|FILE…", nargs=-1, required=True, shell_complete=complete_recording)
def check_command(
    recordings: tuple[str, ...],
    spec: Path,
    is_init: bool,
    output: Path | None,
    junit: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Check what runs did against the rules in a spec, exactly and without calling a model.

    Rules are about tools and their order, arguments, hosts, destructive calls and their targets, values that must come from the
    user or from another step, answers, citations, secrets in prompts, tokens, cost and time (docs/check.md). A bundle, VCR cassette
    or HAR file needs no store.

    \b
        playhead check --init last -o checks.toml      a spec from a good run
        playhead check --init run-1 run-2              what both agree on; what varies is left out
        playhead check last
        playhead check tests/recordings/*.jsonl --spec refunds.toml --junit check.xml

    Exits with 0 if every rule holds, 1 if one is broken, 3 if none is broken but one cannot be decided (a cost that is not known),
    and 125 if the check could not be made.
    """
    if is_init and junit is not None:
        raise click.UsageError("--init makes no check, so there is nothing for --junit to write")
    if output is not None and not is_init:
        raise click.UsageError("-o is for --init; to write results into a file, use --junit FILE or --json > FILE")
    found = settings_from_flags(**flags)
    reading, redactor = step_reader(found)
    if is_init:
        _write_spec(asyncio.run(_propose(CommandProcesses(found), recordings, reading, redactor)), output)
        return
    rules = read_spec(spec)

    async def check() -> Any:
        async with CommandProcesses(found) as processes:
            return await check_recordings(processes, recordings, rules, reading, redactor)

    results = asyncio.run(check())
    verdict = worst_verdict(result.verdict for result in results)
    if junit is not None:
        _write_file(junit, junit_xml(results, str(spec)))
    if as_json:
        print_json(check_json(results, str(spec), verdict))
    else:
        show_check(results, str(spec), stdout_sheet())
    raise click.exceptions.Exit(EXIT_CODES[verdict])


async def _propose(
    processes: CommandProcesses, recordings: tuple[str, ...], reading: StepReader, redactor: Redactor
) -> str:
    async with processes:
        return await propose_checks(processes, recordings, reading, redactor)


def _write_spec(text: str, output: Path | None) -> None:
    if output is None:
        click.echo("\n".join(map(printable, text.rstrip("\n").split("\n"))))
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise Failure(f"{output} exists already: name another file with -o, or remove it first") from error
    except OSError as error:
        raise unwritable_file(output, error, "name another file with -o") from error
    click.echo(f"wrote {text.count('[[rule]]')} rules into {printable(str(output))}", err=True)


def _write_file(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise unwritable_file(path, error) from error


COMMANDS = (check_command,)
