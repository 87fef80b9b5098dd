"""The commands of the batch-invariant model server: setup, up, probe, replay."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from calls.keys.profile import Profiles
from calls.model import Exchange
from proxy.cli.common import as_json, print_json, reading_redactor, settings_from_flags, user_profiles, with_settings
from proxy.cli.compare import load_run_exchanges
from proxy.cli.run_completion import complete_recording
from proxy.commands.up import say_on_stderr
from proxy.errors import Failure
from proxy.inference.plans import PRESETS, Preset, ProbeSize, waves
from proxy.inference.plot import draw_plot
from proxy.inference.probe import Target, probe
from proxy.inference.replay import repeat_exchanges, report_json
from proxy.inference.server import Device, ServerOptions, environment_directory, serve, set_up_environment
from proxy.inference.tally import Tally, Word, probe_verdict
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import Settings
from proxy.terminal.text import print_table, printable
from proxy.worker.recordings import load_file

with_environment = click.option(
    "--env",
    "place",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The server's virtual environment. Default: $PLAYHEAD_INFERENCE_ENV, otherwise inference/.venv in the checkout.",
)
with_device = click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    help="The device to run on. Default: cpu. docs/batch-invariance.md says on which GPU the self-check held.",
)


@click.group("inference", short_help="Set up, run and probe the bundled batch-invariant vLLM server.")
def inference() -> None:
    """Run the bundled vLLM server, patched so that a request's answer has the same bits whatever else is in its batch.

    \b
        playhead inference setup                       # once: an environment of its own, 3 GB
        playhead inference up ./qwen3                  # serves once it has checked itself
        playhead inference up ./qwen3 --stock --port 9001  # the same model without the patch, to compare with
        playhead inference probe http://127.0.0.1:9000 # the same question many times, of any server
        playhead inference replay last                 # a recorded run, asked again and compared bit by bit

    Then let `[upstreams]` in playhead.toml send api.openai.com to it.
    """


@inference.command("setup", short_help="Make the server's environment from its lock.")
@with_environment
@with_device
@click.option(
    "--wheels",
    type=click.Path(path_type=Path, exists=True),
    metavar="DIR",
    help="Install torch for CPUs from this directory.",
)
@as_json
def setup_command(place: Path | None, device: Device, wheels: Path | None, as_json: bool) -> None:
    """Create the virtual environment that vLLM runs in. It is separate from Playhead's own, which imports nothing from it."""
    where = environment_directory(place).absolute()
    set_up_environment(where, device, wheels)
    if as_json:
        print_json({"environment": str(where), "device": device})
    else:
        click.echo(f"made {where}")


@inference.command("up", short_help="Serve a model once it has checked itself.")
@with_environment
@with_device
@click.option(
    "--listen", "host", default="127.0.0.1", metavar="ADDR", help="The address to listen on. Default: 127.0.0.1."
)
@click.option("--port", type=int, default=9000, help="The port to listen on. Default: 9000; 0 selects a free one.")
@click.option(
    "--context", type=int, default=4096, help="The most tokens that prompt and answer may have together. Default: 4096."
)
@click.option(
    "--threads",
    type=int,
    default=2,
    help="Threads on a CPU, at most one for each CPU; part of the fingerprint. Default: 2.",
)
@click.option("--cache-gib", type=int, default=1, help="Memory for the KV cache on a CPU, in GiB. Default: 1.")
@click.option(
    "--degrade",
    is_flag=True,
    help="Serve even if the self-check fails; x-batch-invariant is then false or inconclusive.",
)
@click.option(
    "--kernels",
    type=click.Choice(["vllm", "own"]),
    default="vllm",
    help="Kernels on a GPU: those of vLLM, or Playhead's own if they pass the check on that GPU. Default: vllm.",
)
@click.option("--stock", is_flag=True, help="Serve vLLM without patch, check and claim, as a control for `probe`.")
@click.option("--recheck", is_flag=True, help="Repeat the self-check even if its verdict is cached.")
@click.argument("model")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGS…]")
def up_command(place: Path | None, **what: Any) -> None:
    """Serve MODEL, a directory or a name that vLLM knows, with an OpenAI-compatible API.

    Prints one line on stdout once the self-check has held: ready inference=… invariance=holds fingerprint=… . A server that
    does not hold, or whose check could not have failed, is not started. What was checked: GET /batch_invariance. A check that
    held is remembered for the same model, code, settings, threads and machine; the line then ends in cached=WHEN. That of a
    mixture of experts is repeated at each start, since two processes were seen to give it other bits.

    \b
        playhead inference up ./qwen3 --port 9000
        playhead inference up ./qwen3 -- --max-num-seqs 64 --no-enable-prefix-caching
    """
    if what["kernels"] == "own" and what["device"] == "cpu":
        raise click.UsageError("--kernels own needs a GPU: add --device gpu, or leave it out")
    if what["stock"] and (what["degrade"] or what["recheck"] or what["kernels"] == "own"):
        raise click.UsageError(
            "--stock serves vLLM without the patch: leave out --degrade, --recheck and --kernels own"
        )
    try:
        asyncio.run(serve(environment_directory(place), ServerOptions(**what), say_on_stderr))
    except* Failure as failures:
        raise failures.exceptions[0] from None


EXITS: dict[Word, int] = {"invariant": 0, "varies": 1, "inconclusive": 3}


@inference.command("probe", short_help="Ask any server the same question many times under varied load.")
@click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="needle",
    help="The design of the questions. Default: needle, Playhead's own.",
)
@click.option(
    "--control",
    metavar="URL",
    help="A server of the same model without the patch, whose answers must vary for a conclusion.",
)
@click.option("--model", metavar="NAME", help="The model to ask for. Default: the first that the server lists.")
@click.option(
    "--api-key", "key", envvar="OPENAI_API_KEY", help="The key to send to the server. Default: $OPENAI_API_KEY."
)
@click.option("--chat", is_flag=True, help="Use /chat/completions, for a server without /completions.")
@click.option("--prompt", metavar="TEXT", help="The question to ask in place of the preset's.")
@click.option(
    "--requests", type=click.IntRange(1), help="The number of requests; with presets vllm and sglang, of trials."
)
@click.option("--concurrency", type=click.IntRange(1), help="The largest number of concurrent requests.")
@click.option("--tokens", type=click.IntRange(1), help="The most tokens of an answer.")
@click.option("--seed", type=int, default=0, help="The seed that selects the concurrent requests. Default: 0.")
@click.option(
    "--svg", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Plot distinct answers by load."
)
@as_json
@click.argument("url")
def probe_command(
    url: str,
    preset: Preset,
    control: str | None,
    model: str | None,
    key: str | None,
    chat: bool,
    seed: int,
    svg: Path | None,
    as_json: bool,
    **size: Any,
) -> None:
    """Ask the OpenAI-compatible server at URL the same questions many times under varied load, and compare the answers.

    Answers are compared to the last bit of their logprobs. Exits with 0 where each question has one answer and the control
    had more, 1 where answers vary, and 3 where neither is shown: that nothing varied proves nothing by itself.

    \b
        playhead inference probe http://127.0.0.1:9000 --control http://127.0.0.1:9001 --svg distinct.svg
        playhead inference probe https://api.openai.com --model gpt-4o --chat --preset thinking-machines --requests 50
    """
    urls = [url, *([control] if control else [])]
    tallies = [
        asyncio.run(
            probe(
                Target(url=each, model=model, key=key, chat=chat),
                waves(preset, ProbeSize(**size), random.Random(seed)),  # noqa: S311 # the same company for both
            )
        )
        for each in urls
    ]
    word, reason = probe_verdict(tallies[0], tallies[1] if control else None)
    if svg:
        svg.write_text(draw_plot(f"Distinct answers to the same request ({preset})", tallies), "utf-8")
    if as_json:
        print_json({"verdict": word, "reason": reason, "preset": preset, "servers": [asdict(each) for each in tallies]})
    else:
        _show_tallies(tallies)
        click.echo(f"{word}: {reason}")
    raise click.exceptions.Exit(EXITS[word])


def _show_tallies(tallies: Sequence[Tally]) -> None:
    rows = [
        (
            tally.url,
            subject.name,
            str(subject.answers),
            str(subject.distinct),
            str(subject.texts),
            "-" if subject.diverges_at is None else str(subject.diverges_at),
            f"{subject.logprob_delta:.1e}" if subject.bitwise else "none given",
        )
        for tally in tallies
        for subject in tally.subjects
    ]
    print_table(("SERVER", "QUESTION", "ANSWERS", "DISTINCT", "TEXTS", "PARTS AT", "LOGPROB DELTA"), rows)
    for tally in tallies:
        click.echo(f"{tally.url}: {tally.seconds:.1f} s, {len(tally.failed)} failed, x-batch-invariant: {tally.claim}")


@inference.command("replay", short_help="Ask a recorded run's model calls again, and compare bit by bit.")
@with_settings
@click.option(
    "--server", metavar="URL", help="The server to ask. Default: according to [upstreams], otherwise the recorded one."
)
@click.option("--api-key", "key", envvar="VLLM_API_KEY", help="The key to send to the server. Default: $VLLM_API_KEY.")
@as_json
@click.argument("run", metavar="RUN|BUNDLE|last", shell_complete=complete_recording)
def replay_command(run: str, server: str | None, key: str | None, as_json: bool, **flags: Any) -> None:
    """Ask the live server again what RUN asked it, and compare the answers to the last bit.

    Only calls whose answer made the claim (`x-batch-invariant: true`) are repeated; the others are counted. Exits with 0 if all
    answers are the same, 1 if the same build answers differently, and 3 if that is unknown: another build or machine answers now, a
    secret was redacted in the request, or no answer made the claim.

    \b
        playhead inference replay last --server http://127.0.0.1:9000
    """
    compared = asyncio.run(_ask_again(settings_from_flags(**flags), run, server, key))
    if as_json:
        print_json(compared)
    else:
        for call in compared["calls"]:
            click.echo(
                f"{_SAME[call['same']]:8} {printable(call['path'])}  {call['reason']} {' '.join(call['pointers'][:3])}"
            )
        click.echo(
            f"{compared['verdict']}: {compared['asked']} asked again, {compared['without_claim']} without the claim"
        )
    raise click.exceptions.Exit({"rederived": 0, "differs": 1, "unknown": 3}[compared["verdict"]])


_SAME = {True: "same", False: "DIFFERS", None: "unknown"}


async def _ask_again(settings: Settings, run: str, server: str | None, key: str | None) -> dict[str, Any]:
    profiles = user_profiles(settings)
    exchanges = _exchanges_from_file(settings, run, profiles)
    if exchanges is None:
        async with CommandProcesses(settings) as processes:
            with await processes.connect_store_server() as api:
                exchanges = await asyncio.to_thread(load_run_exchanges, api, run)
    answers = await repeat_exchanges(exchanges, server, settings.upstreams, profiles, key)
    return report_json(run, answers, len(exchanges) - len(answers))


def _exchanges_from_file(settings: Settings, name: str, profiles: Profiles) -> Sequence[Exchange] | None:
    """Return the exchanges of a file, or None if the name is not a file's."""
    path = Path(name)
    if not path.is_file():
        return None
    return load_file(path, reading_redactor(settings, profiles), profiles).exchanges


COMMANDS = (inference,)
