"""Run vLLM's OpenAI-compatible server with the patch: `python -m playhead_inference --model …`.

vLLM starts without a plugin that it could not import, and without one that `VLLM_PLUGINS` does not name. So the plugin is
imported and named here, before vLLM looks for it: an unpatched server never starts.
"""

import os
import signal
import sys
import threading
from importlib.metadata import entry_points

from playhead_inference.control import run_control
from playhead_inference.plugin import register
from playhead_inference.verdict import CONTROL

NAME = "playhead_inference"
GROUPS = ("vllm.general_plugins", "vllm.endpoint_plugins")


def main() -> None:
    """Start the server with vLLM's own arguments."""
    if os.environ.pop("PLAYHEAD_TETHERED", None):
        threading.Thread(target=_end_with_parent, daemon=True).start()
    missing = [group for group in GROUPS if NAME not in entry_points(group=group).names]
    if missing:
        sys.exit(
            f"playhead-inference is not installed where vLLM looks for plugins ({', '.join(missing)}); install it into"
            " vLLM's environment"
        )
    named = [name for name in os.environ.get("VLLM_PLUGINS", "").split(",") if name]
    os.environ["VLLM_PLUGINS"] = ",".join(dict.fromkeys((*named, NAME)))
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        # This mode cannot be turned off again in this process, so the control without it runs first, in another process.
        os.environ[CONTROL] = run_control(sys.argv[1:])
    register()
    for group in GROUPS:
        entry_points(group=group)[NAME].load()

    from vllm.entrypoints.launchers.api_server.entry import main as serve

    serve()


def _end_with_parent() -> None:
    """End when stdin is closed, which the launcher holds open, so that a killed launcher leaves no server behind."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()
