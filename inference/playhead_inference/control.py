"""`python -m playhead_inference.control FILE --model …`: ask stock vLLM what the self-check will ask, and leave it in FILE.

On a CPU the patch is turned off and on again in one process. vLLM's own mode, which is what a GPU gets, is decided when vLLM is
imported: so there stock runs first, in a process of its own, and the server is told in PLAYHEAD_CONTROL what came of it.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any


def ran(words: Sequence[str]) -> str:
    """Run it with these arguments of vLLM's, and give what it left. Raises SystemExit where it fails or we are to end."""
    with TemporaryDirectory(prefix="playhead-control-") as scratch:
        file = Path(scratch) / "control.json"
        before = signal.signal(signal.SIGTERM, _leave)
        done = subprocess.run([sys.executable, "-m", "playhead_inference.control", str(file), *words], check=False)
        signal.signal(signal.SIGTERM, before)
        if done.returncode:
            sys.exit(f"stock vLLM, asked first as a control, ended with {done.returncode}; its words are above")
        return file.read_text("utf-8")


def _leave(*_: Any) -> None:
    """An exception, so that `run` takes the child along. As the first process of a container we would not end otherwise."""
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """The file's name, then vLLM's own arguments."""
    file = Path(sys.argv.pop(1))
    # Stock is none of what the guard lets pass; here it is wanted.
    os.environ |= {"VLLM_PLUGINS": "playhead_inference", "PLAYHEAD_INVARIANCE": "degrade"}
    os.environ.pop("VLLM_BATCH_INVARIANT", None)
    file.write_text(json.dumps(asyncio.run(_found())), "utf-8")


async def _found() -> dict[str, Any]:
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from playhead_inference.check import Check

    async with build_async_engine_client(make_arg_parser(FlexibleArgumentParser()).parse_args()) as engine:
        return await Check(engine).control()


if __name__ == "__main__":
    main()
