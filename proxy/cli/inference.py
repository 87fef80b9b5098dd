"""The commands of the batch-invariant model server: setup, up, probe, replay."""

import asyncio
import random
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from calls.keys.profile import Profiles
from calls.model import Exchange
from calls.redaction.redactor import Redactor
from proxy.cli.common import as_json, print_json, settings, with_settings
from proxy.cli.compare import recorded
from proxy.cli.profiles import user_profiles
from proxy.commands.up import say_on_stderr
from proxy.errors import Failure
from proxy.inference.plans import PRESETS, Preset, Size, waves
from proxy.inference.plot import plot
from proxy.inference.probe import Target, probe
from proxy.inference.replay import again
from proxy.inference.replay import as_json as report
from proxy.inference.server import Device, ServerOptions, home, serve, set_up
from proxy.inference.tally import Tally, Word, verdict
from proxy.processes.command_processes import CommandProcesses
from proxy.settings import Settings
from proxy.terminal.text import print_table, printable
from proxy.worker.recordings import from_file

with_environment = click.option(
    "--env",
    "place",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The server's environment. Default: $PLAYHEAD_INFERENCE_ENV, else inference/.venv in the checkout.",
)
with_device = click.option(
    "--device",
    type=click.Choice(["cpu", "gpu"]),
    default="cpu",
    help="Default: cpu. On a GPU the self-check was seen to fail: see docs.",
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
    "--wheels", type=click.Path(path_type=Path, exists=True), metavar="DIR", help="Take torch for CPUs from here."
)
@as_json
def setup_command(place: Path | None, device: Device, wheels: Path | None, as_json: bool) -> None:
    """Make the environment that vLLM runs in. It is separate from Playhead's own, and Playhead imports nothing from it."""
    where = home(place).absolute()
    set_up(where, device, wheels)
    if as_json:
        print_json({"environment": str(where), "device": device})
    else:
        click.echo(f"made {where}")


@inference.command(
    "up",
    short_help="Serve a model once it has checked itself.",
    context_settings={"ignore_unknown_options": True},
)
@with_environment
@with_device
@click.option("--host", default="127.0.0.1", metavar="ADDR", help="Default: 127.0.0.1.")
@click.option("--port", type=int, default=9000, help="Default: 9000; 0 takes a free one.")
@click.option("--context", type=int, default=4096, help="Tokens of prompt and answer together. Default: 4096.")
@click.option(
    "--threads",
    type=int,
    default=2,
    help="On a CPU, fixed, and part of the fingerprint. More than there are CPUs are refused. Default: 2.",
)
@click.option("--cache-gib", type=int, default=1, help="On a CPU, memory for the KV cache. Default: 1.")
@click.option(
    "--degrade",
    is_flag=True,
    help="Serve even where the self-check fails; x-batch-invariant then says false or inconclusive.",
)
@click.option(
    "--kernels",
    type=click.Choice(["vllm", "own"]),
    default="vllm",
    help="On a GPU: vllm's own, or ours in their place, once they hold on that GPU. Default: vllm.",
)
@click.option(
    "--stock", is_flag=True, help="Serve vLLM as it comes, without patch, check or claim: a control for `probe`."
)
@click.option("--recheck", is_flag=True, help="Repeat the self-check even where its verdict is remembered.")
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
        raise click.UsageError("--kernels own is for a GPU; on a CPU what is patched is vLLM's own kernels")
    if what["stock"] and (what["degrade"] or what["recheck"] or what["kernels"] == "own"):
        raise click.UsageError(
            "--stock serves vLLM without the patch: leave out --degrade, --recheck and --kernels own"
        )
    try:
        asyncio.run(serve(home(place), ServerOptions(**what), say_on_stderr))
    except* Failure as failures:
        raise failures.exceptions[0] from None


EXITS: dict[Word, int] = {"invariant": 0, "varies": 1, "inconclusive": 3}


@inference.command("probe", short_help="Ask any server the same thing many times, in company.")
@click.option("--preset", type=click.Choice(PRESETS), default="needle", help="Whose design. Default: needle, ours.")
@click.option("--control", metavar="URL", help="The same model served as it comes: it must vary, or nothing is shown.")
@click.option("--model", metavar="NAME", help="Default: the first that the server lists.")
@click.option("--api-key", "key", envvar="OPENAI_API_KEY", help="Default: $OPENAI_API_KEY.")
@click.option("--chat", is_flag=True, help="Ask /chat/completions, where the server has no /completions.")
@click.option("--prompt", metavar="TEXT", help="The question, in place of the preset's.")
@click.option("--requests", type=click.IntRange(1), help="How many, or of vllm and sglang how many trials.")
@click.option("--concurrency", type=click.IntRange(1), help="The largest load.")
@click.option("--tokens", type=click.IntRange(1), help="The longest answer.")
@click.option("--seed", type=int, default=0, help="Of the company that is drawn by lot. Default: 0.")
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
    asked = [url, *([control] if control else [])]
    tallies = [
        asyncio.run(
            probe(
                Target(url=each, model=model, key=key, chat=chat),
                waves(preset, Size(**size), random.Random(seed)),  # noqa: S311 # the same company for both
            )
        )
        for each in asked
    ]
    word, reason = verdict(tallies[0], tallies[1] if control else None)
    if svg:
        svg.write_text(plot(f"Distinct answers to the same request ({preset})", tallies), "utf-8")
    if as_json:
        print_json({"verdict": word, "reason": reason, "preset": preset, "servers": [asdict(each) for each in tallies]})
    else:
        _show(tallies)
        click.echo(f"{word}: {reason}")
    raise click.exceptions.Exit(EXITS[word])


def _show(tallies: Sequence[Tally]) -> None:
    rows = [
        (
            found.url,
            subject.name,
            str(subject.answers),
            str(subject.distinct),
            str(subject.texts),
            "-" if subject.diverges_at is None else str(subject.diverges_at),
            f"{subject.logprob_delta:.1e}" if subject.bitwise else "none given",
        )
        for found in tallies
        for subject in found.subjects
    ]
    print_table(("SERVER", "QUESTION", "ANSWERS", "DISTINCT", "TEXTS", "PARTS AT", "LOGPROB DELTA"), rows)
    for found in tallies:
        click.echo(f"{found.url}: {found.seconds:.1f} s, {len(found.failed)} failed, x-batch-invariant: {found.claim}")


@inference.command("replay", short_help="Ask a recorded run's model calls again, and compare bit by bit.")
@with_settings
@click.option("--server", metavar="URL", help="Who is asked. Default: by [upstreams], else who was asked then.")
@click.option("--api-key", "key", envvar="VLLM_API_KEY", help="Sent to that server. Default: $VLLM_API_KEY.")
@as_json
@click.argument("run", metavar="RUN|BUNDLE")
def replay_command(run: str, server: str | None, key: str | None, as_json: bool, **flags: Any) -> None:
    """Ask the live server again what RUN asked it, and compare the answers to the last bit.

    Only answers that were given under the claim (`x-batch-invariant: true`) are asked again; the others are counted. Exits
    with 0 where all are the same, with 1 where the same build answers otherwise, and with 3 where that could not be told:
    another build or machine answers now, a secret was cut from the request, or nothing was answered under the claim.

    \b
        playhead inference replay last --server http://127.0.0.1:9000
    """
    told = asyncio.run(_derived_again(settings(**flags), run, server, key))
    if as_json:
        print_json(told)
    else:
        for call in told["calls"]:
            click.echo(
                f"{_SAME[call['same']]:8} {printable(call['path'])}  {call['reason']} {' '.join(call['pointers'][:3])}"
            )
        click.echo(f"{told['verdict']}: {told['asked']} asked again, {told['without_claim']} without the claim")
    raise click.exceptions.Exit({"rederived": 0, "differs": 1, "unknown": 3}[told["verdict"]])


_SAME = {True: "same", False: "DIFFERS", None: "unknown"}


async def _derived_again(found: Settings, run: str, server: str | None, key: str | None) -> dict[str, Any]:
    profiles = user_profiles(found)
    exchanges = _from_file(run, profiles)
    if exchanges is None:
        async with CommandProcesses(found) as house:
            with await house.api() as api:
                exchanges = await asyncio.to_thread(recorded, api, run)
    asked = await again(exchanges, server, found.upstreams, profiles, key)
    return report(run, asked, len(exchanges) - len(asked))


def _from_file(name: str, profiles: Profiles) -> Sequence[Exchange] | None:
    """The exchanges in a file, where one is meant. What a file holds is kept nowhere, so any key does."""
    path = Path(name)
    if not path.is_file():
        return None
    return from_file(path, Redactor(key=secrets.token_bytes(32)), profiles).exchanges


COMMANDS = (inference,)
