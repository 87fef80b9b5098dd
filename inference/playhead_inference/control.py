"""Run the self-check's control on stock vLLM: `python -m playhead_inference.control FILE --model …` writes it to FILE.

On a CPU the patch is turned off and on again within one process. On a GPU, vLLM's own mode is fixed when vLLM is imported.
So stock vLLM runs there first, in its own process, and the server gets the result in PLAYHEAD_CONTROL.
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


def run_control(words: Sequence[str]) -> str:
    """Run the control with these arguments of vLLM and return its result. Raises SystemExit if it fails or on SIGTERM."""
    with TemporaryDirectory(prefix="playhead-control-") as scratch:
        file = Path(scratch) / "control.json"
        previous_handler = signal.signal(signal.SIGTERM, _exit_on_signal)
        result = subprocess.run([sys.executable, "-m", "playhead_inference.control", str(file), *words], check=False)
        signal.signal(signal.SIGTERM, previous_handler)
        if result.returncode:
            sys.exit(f"the control run of stock vLLM ended with exit code {result.returncode}; its output is above")
        return file.read_text("utf-8")


def _exit_on_signal(*_: Any) -> None:
    """Raise, so that `run` kills the child. As the first process of a container, this one would not end otherwise."""
    sys.exit(128 + signal.SIGTERM)


def main() -> None:
    """Write the control's result to a file. Arguments: the file's name, then vLLM's own arguments."""
    file = Path(sys.argv.pop(1))
    # The guard refuses stock vLLM on a GPU; the control needs it.
    os.environ |= {"VLLM_PLUGINS": "playhead_inference", "PLAYHEAD_INVARIANCE": "degrade"}
    os.environ.pop("VLLM_BATCH_INVARIANT", None)
    file.write_text(json.dumps(asyncio.run(_control_cells())), "utf-8")


async def _control_cells() -> dict[str, Any]:
    from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    from playhead_inference.check import SelfCheck

    async with build_async_engine_client(make_arg_parser(FlexibleArgumentParser()).parse_args()) as engine:
        return await SelfCheck(engine).control()


if __name__ == "__main__":
    main()
