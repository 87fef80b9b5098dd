"""The commands for what programs ask people: waiting, answer."""

import getpass
import os
import sys
from typing import Any

import click

from proxy.cli.common import as_json, print_json, query_store, with_settings
from proxy.cli.run_completion import complete_run
from proxy.processes.store_client import Api, path_segment, resolve_run_name
from proxy.terminal.text import next_command, printable


@click.command("waiting", short_help="List the questions that wait for a person's answer.")
@with_settings
@as_json
@click.argument("run", required=False, shell_complete=complete_run)
def waiting_command(run: str | None, as_json: bool, **flags: Any) -> None:
    """List the questions that programs ask and nobody has answered, oldest first; with RUN, those of a run.

    A program asks with `effects.input` of the Python client (docs/workflows.md), and stops.

    \b
        playhead waiting
        playhead answer ticket-904 --value yes
        playhead resume ticket-904 -- python agent.py
    """

    def fetch(api: Api) -> list[dict[str, Any]]:
        query = {"run": resolve_run_name(api, run)} if run else {}
        found: list[dict[str, Any]] = api.get("/waiting", **query)["items"]
        return found

    questions = query_store(flags, fetch)
    if as_json:
        print_json({"items": questions})
        return
    if not questions:
        click.echo("nobody is asked anything", err=True)
        return
    for one in questions:
        where = f"  asked from {printable(one['asked_from'])}" if one["asked_from"] else ""
        click.echo(f"{printable(one['run'])}  {one['asked_at']}  question {one['question']}{where}")
        click.echo(f"    {printable(_prompt(one))}")
    is_one_each = len({one["run"] for one in questions}) == len(questions)
    words = "RUN --value TEXT" if is_one_each else "RUN --question ID --value TEXT"
    click.echo(f"answer with: {next_command('answer', words)}", err=True)


@click.command("answer", short_help="Answer a question that a run waits for.")
@with_settings
@as_json
@click.argument("run", metavar="RUN|last", shell_complete=complete_run)
@click.option("--value", metavar="TEXT", help="The answer; `-` reads it from standard input.")
@click.option("--question", metavar="ID", help="Which question, if several of the run wait.")
@click.option("--by", metavar="NAME", help="Who answers. Default: your account on this machine.")
def answer_command(
    run: str, value: str | None, question: str | None, by: str | None, as_json: bool, **flags: Any
) -> None:
    """Answer a question of RUN. The answer, who gave it and when are part of the run's record; the first answer is valid.

    Then `playhead resume RUN -- COMMAND` goes on. Without --value, the question is shown and the answer read from the terminal.
    """
    if value is None and not sys.stdin.isatty():
        raise click.UsageError(
            "there is no terminal to answer on: add --value TEXT, or --value - to read standard input"
        )

    def post(api: Api) -> dict[str, Any]:
        name = resolve_run_name(api, run)
        question_id = question
        answer = value
        if answer is None:
            waiting = api.get("/waiting", run=name)["items"]
            found = [one for one in waiting if question in (None, one["question"])]
            if len(found) == 1:
                question_id = found[0]["question"]
                answer = str(click.prompt(printable(_prompt(found[0])), prompt_suffix=" ", err=True))
        body = {"value": answer or "", "question": question_id, "by": by or user_name()}
        stored: dict[str, Any] = api.post(f"/runs/{path_segment(name)}/answers", json=body)
        return stored

    if value == "-":
        value = sys.stdin.read().removesuffix("\n")
    answered = query_store(flags, post)
    if as_json:
        print_json(answered)
        return
    click.echo(f"{printable(answered['run'])}: {printable(_prompt(answered))}")
    click.echo(f"    {printable(str(answered['answer']['value']))}  ({printable(answered['answer']['by'])})")
    click.echo(f"go on with: {next_command('resume', answered['run'] + ' -- COMMAND')}", err=True)


def user_name() -> str:
    """Return the name of the user who answers. One that the system does not know has a number."""
    try:
        return getpass.getuser()
    except OSError:
        return f"user {os.getuid()}"


def _prompt(question: dict[str, Any]) -> str:
    return "(the token may not read prompts)" if question["prompt"] is None else str(question["prompt"])


COMMANDS = (waiting_command, answer_command)
