"""`python -m playhead_inference --model … `: vLLM's OpenAI-compatible server, or nothing where it would start unpatched.

vLLM starts without a plugin that it could not import, and without one that `VLLM_PLUGINS` does not name. So here the plugin
is imported and named before vLLM looks for it.
"""

import os
import signal
import sys
import threading
from importlib.metadata import entry_points

from playhead_inference.control import ran
from playhead_inference.plugin import register
from playhead_inference.verdict import CONTROL

NAME = "playhead_inference"
GROUPS = ("vllm.general_plugins", "vllm.endpoint_plugins")


def main() -> None:
    """Take vLLM's own arguments."""
    if os.environ.pop("PLAYHEAD_TETHERED", None):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    missing = [group for group in GROUPS if NAME not in entry_points(group=group).names]
    if missing:
        sys.exit(f"playhead-inference is not installed where vLLM looks for plugins ({', '.join(missing)})")
    named = [name for name in os.environ.get("VLLM_PLUGINS", "").split(",") if name]
    os.environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys((*named, NAME)))
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        # This mode cannot be turned off again in this process, so what it is without it is asked before.
        os.environ[CONTROL] = ran(sys.argv[1:])
    register()
    for group in GROUPS:
        entry_points(group=group)[NAME].load()

    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


def _end_with_parent() -> None:
    """Whoever started us holds our stdin open for as long as we shall live: a killed launcher leaves no server behind."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
