"""`python -m playhead_inference.control FILE --model …`: ask stock vLLM what the self-check will ask, and leave it in FILE.

On a CPU the patch is turned off and on again in one process. vLLM's own mode, which is what a GPU gets, is decided when vLLM is
imported: so there stock runs first, in this process of its own, and the server is told of it by PLAYHEAD_CONTROL=FILE.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from playhead_inference.__main__ import tether


def main() -> None:
    """The file's name, then vLLM's own arguments."""
    tether()
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
