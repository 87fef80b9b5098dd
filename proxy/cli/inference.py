"""The commands of the batch-invariant model server: setup, up, probe, replay."""

import asyncio
from pathlib import Path
from typing import Any

import click

from proxy.cli.common import as_json, print_json
from proxy.errors import Failure
from proxy.inference import Device, Serving, home, serve, set_up
from proxy.up import say_on_stderr

with_environment = click.option(
    "--env",
    "place",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The server's environment. Default: $PLAYHEAD_INFERENCE_ENV, else inference/.venv in the checkout.",
)
with_device = click.option(
    "--device", type=click.Choice(["cpu", "gpu"]), default="cpu", help="Default: cpu. gpu was not run by us."
)


@click.group("inference", short_help="The model server whose answers do not depend on their company.")
def inference() -> None:
    """vLLM, patched so that the same request gets the same bits whoever else is asking, and made to prove it.

    \b
        playhead inference setup                       # once: an environment of its own, 3 GB
        playhead inference up ./qwen3                  # serves once it has checked itself
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
    """Make the environment that vLLM runs in. It is none of ours: nothing of Playhead's is imported there."""
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
@click.option("--threads", type=int, default=2, help="On a CPU, fixed: they belong to the fingerprint. Default: 2.")
@click.option("--cache-gib", type=int, default=1, help="On a CPU, memory for the KV cache. Default: 1.")
@click.option(
    "--degrade", is_flag=True, help="Serve also what does not hold, without the claim: x-batch-invariant says so."
)
@click.argument("model")
@click.argument("extra", nargs=-1, type=click.UNPROCESSED, metavar="[-- VLLM ARGS…]")
def up_command(place: Path | None, **what: Any) -> None:
    """Serve MODEL, a directory or a name that vLLM knows, with an OpenAI-compatible API.

    Prints one line on stdout once the self-check has held: ready inference=… invariance=holds fingerprint=… . A server that
    does not hold, or whose check could not have failed, is not started. What was checked: GET /batch_invariance.

    \b
        playhead inference up ./qwen3 --port 9000
        playhead inference up ./qwen3 -- --max-num-seqs 64 --no-enable-prefix-caching
    """
    try:
        asyncio.run(serve(home(place), Serving(**what), say_on_stderr))
    except* Failure as failures:
        raise failures.exceptions[0] from None


COMMANDS = (inference,)
