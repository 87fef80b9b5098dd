"""The command that varies what an agent received: perturb."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from calls.perturbation.edits import GROUPS, Group
from calls.perturbation.schema import BadSchema, shape_from_schema
from calls.perturbation.shape import AnswerShape
from calls.redaction.redactor import Redactor
from calls.route import route_request
from proxy.cli.common import (
    as_json,
    print_json,
    settings_from_flags,
    step_reader,
    with_isolation,
    with_settings,
)
from proxy.cli.run_completion import complete_recording
from proxy.cli.testing.trial_options import (
    CommandAfterDashes,
    run_until_stopped,
    scratch_runner,
    show_progress,
    take_trial_options,
    with_trial_options,
)
from proxy.commands.check import read_spec
from proxy.commands.override_file import load_overrides
from proxy.errors import Failure, explain_file_errors
from proxy.processes.command_processes import CommandProcesses
from proxy.terminal.table import stdout_sheet
from proxy.terminal.text import count_text
from proxy.trials.completion import model_upstreams
from proxy.trials.corpus import ToolShapes, list_calls
from proxy.trials.new_run import file_stem
from proxy.trials.perturb import Perturbation, PerturbationResult
from proxy.trials.perturb_report import perturbed_json, show_perturbed, write_fixtures
from proxy.trials.recordings import NamedRecording, find_recordings, is_file, load_recording
from proxy.trials.tool_answers import FoundAnswer, find_tool_answers, in_step_order, with_shapes
from store.bundle.bundle import Bundle
from store.diff.steps import StepReader


@click.command("perturb", cls=CommandAfterDashes, short_help="Vary what an agent received, and say what breaks it.")
@with_settings
@as_json
@click.option("-n", "--count", type=click.IntRange(1, 10_000), default=50, help="How many variations. Default: 50.")
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, help="The same seed makes the same variations. Default: 1."
)
@click.option(
    "--vary",
    type=click.Choice(GROUPS),
    multiple=True,
    help="What to vary: answers of tools, lists and texts that were retrieved (chunks), errors, latencies. May be repeated."
    " Default: all.",
)
@click.option(
    "--spec",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="The rules that must hold (docs/check.md). Without it only COMMAND's exit code counts.",
)
@click.option(
    "--override",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Overrides that every replay has, such as answers for requests that were never recorded (docs/forks.md).",
)
@click.option(
    "--corpus",
    multiple=True,
    metavar="RUN|FILE|DIR",
    shell_complete=complete_recording,
    help="More recordings from which the shapes of tools' answers are learned. May be repeated.",
)
@click.option(
    "--learn-for",
    "learn_s",
    type=click.FloatRange(min=0, max=86_400),
    metavar="SECONDS",
    default=60.0,
    help="How long the store's recordings are read for the shapes of tools' answers, the newest first. Default: 60.",
)
@click.option(
    "--schema",
    multiple=True,
    metavar="TOOL=FILE",
    help="The JSON Schema of a tool's answers, instead of what is learned. TOOL is a tool of MCP, or as in 'GET"
    " crm.example.com/records/*'. May be repeated.",
)
@with_trial_options
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the smallest variations that break are written. Default: ./perturb-RUN.",
)
@with_isolation
@click.argument("recording", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
def perturb_command(
    recording: str,
    count: int,
    seed: int,
    vary: tuple[Group, ...],
    spec: Path | None,
    override: Path | None,
    corpus: tuple[str, ...],
    learn_s: float,
    schema: tuple[str, ...],
    keep: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Replay a recording many times, each time with something else in what the agent received, and say what breaks it.

    Variations are answers of tools (other values, orders, ids, languages, empty lists, missing members), retrieved texts with a
    distractor or an injected instruction, errors, and slow answers. They fit the shape that the answers of a tool have in all
    recordings. What the recording does not answer goes out only with --model-url, under the rules of `playhead fork`; otherwise such a
    replay `could not go on`. For each way to break, the smallest variation is written as an override file, and the broken run as a bundle.

    \b
        playhead perturb incident -n 50 --seed 1 --spec checks.toml --model-url http://127.0.0.1:8000 -- python agent.py
        playhead perturb incident.jsonl --vary errors -- python agent.py

    Exits with 0 if nothing breaks, 1 if a rule does not hold or COMMAND fails under a variation, 3 if nothing breaks but no replay
    could go on to its end, and 125 if nothing could be tried.
    """
    trials = take_trial_options(flags, "playhead perturb last -- python agent.py")
    rules = read_spec(spec) if spec is not None else ()
    base = load_overrides([str(override)] if override else []).get("overrides", [])
    shapes = dict(map(_read_schema, schema))
    settings = settings_from_flags(**flags)
    reading, redactor = step_reader(settings)
    with scratch_runner("perturb", settings, flags, trials, allow_unused=True) as runner:

        async def perturb() -> tuple[PerturbationResult, _Material]:
            # While it is entered, the store server that it uses stays for the trials.
            async with CommandProcesses(settings) as processes:
                material = await _find_material(
                    processes, recording, corpus, learn_s, runner.scratch, redactor, reading
                )
                perturbation = Perturbation(
                    runner=runner,
                    reading=reading,
                    recording=material.recording.file,
                    called=material.recording.name,
                    bundle=material.bundle,
                    answers=with_shapes(material.answers, material.shapes.shapes, shapes),
                    fork={
                        "at": len(material.bundle.entries),
                        "effects": list(trials.effects),
                        "offline": trials.model_origin is None,
                    },
                    upstreams=model_upstreams(material.bundle.exchanges, trials.model_origin),
                    spec=rules,
                    base=base,
                    groups=vary or GROUPS,
                    seed=seed,
                    count=count,
                    jobs=trials.jobs,
                    show_progress=show_progress,
                )
                return await perturbation.run(), material

        perturbed, material = run_until_stopped(perturb())
        run, bundle = material.recording.name, material.bundle
        fixtures = write_fixtures(keep or Path(f"perturb-{file_stem(run)}"), perturbed, bundle, base, reading)
    if as_json:
        print_json(perturbed_json(perturbed, fixtures, run=run, seed=seed, command=trials.command))
    else:
        show_perturbed(perturbed, fixtures, stdout_sheet())
    raise click.exceptions.Exit(_exit_code(perturbed))


def _exit_code(perturbed: PerturbationResult) -> int:
    if perturbed.has_broken:
        return 1
    return 0 if any(run.finding.effect == "held" for run in perturbed.runs) else 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Material:
    """The recording to vary, and what is known of the answers in it."""

    recording: NamedRecording
    bundle: Bundle
    answers: Sequence[FoundAnswer]
    shapes: ToolShapes


async def _find_material(
    processes: CommandProcesses,
    name: str,
    corpus: Sequence[str],
    learn_s: float,
    scratch: Path,
    redactor: Redactor,
    reading: StepReader,
) -> _Material:
    """Load the recording, and learn the shapes of its tools' answers from it, from the corpus and from the store."""
    (recording,) = await find_recordings(processes, [name], None, scratch / "recording")
    bundle = await load_recording(recording, redactor, reading.profiles)
    answers = list(find_tool_answers(in_step_order(bundle.exchanges), reading))
    shapes = ToolShapes(tools=frozenset(one.tool for one in answers))
    shapes.learn(answers, recording.name)
    await _learn_from_files(processes, corpus, shapes, scratch, redactor, reading)
    await _learn_from_store(processes, recording, answers, shapes, learn_s)
    return _Material(recording=recording, bundle=bundle, answers=answers, shapes=shapes)


async def _learn_from_files(
    processes: CommandProcesses,
    names: Sequence[str],
    shapes: ToolShapes,
    scratch: Path,
    redactor: Redactor,
    reading: StepReader,
) -> None:
    """Learn from the recordings that --corpus names, one after the other."""
    if not names:
        return
    for other in await find_recordings(processes, names, None, scratch / "corpus"):
        bundle = await load_recording(other, redactor, reading.profiles)
        shapes.learn(find_tool_answers(in_step_order(bundle.exchanges), reading), other.name)


async def _learn_from_store(
    processes: CommandProcesses,
    varied: NamedRecording,
    answers: Sequence[FoundAnswer],
    shapes: ToolShapes,
    limit_s: float,
) -> None:
    """Learn from all recordings of the store, if the run is from there, and say how many were read."""
    hosts = sorted({route_request(one.exchange.request).host for one in answers})
    if is_file(varied.name) or not hosts or not limit_s:
        return
    api = await processes.connect_store_server(stays_ready=True)
    calls = list_calls(api, hosts)
    learn = partial(shapes.learn_from_calls, calls, skipped=varied.name, limit_s=limit_s, show=show_progress)
    await asyncio.to_thread(learn)
    end = "" if shapes.is_whole else f"; older ones were not read after {limit_s:g} s (--learn-for)"
    show_progress(f"the shapes of {count_text(len(shapes.tools), 'tool')} were learned from {shapes.summary}{end}")


def _read_schema(words: str) -> tuple[str, AnswerShape]:
    tool, equals, name = words.rpartition("=")
    if not equals or not tool:
        raise click.UsageError(
            f"--schema {words!r} names no tool: write TOOL=FILE, as in 'GET crm.example.com/records=records.json'"
        )
    try:
        with explain_file_errors(Path(name), "schema", "name a file with a JSON Schema", BadSchema):
            return tool, shape_from_schema(json.loads(Path(name).read_text("utf-8")))
    except json.JSONDecodeError as error:
        raise Failure(f"{name}: line {error.lineno}: it is not JSON: {error.msg}") from error


COMMANDS = (perturb_command,)
