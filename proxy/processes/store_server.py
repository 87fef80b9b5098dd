"""Run the store server with the check of replay options, which the store does not import: `python -m proxy.processes.store_server`."""

import gc
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from calls.keys.profile import Profiles
    from calls.redaction.call import Clean
    from store.bundle.bundle import Bundle

HELPER_COMMAND: Final = (sys.executable, "-m", "proxy.processes.store_helper")


def rejection_reason(
    bundle: "Bundle", requested: Mapping[str, Any], profiles: "Profiles", clean: "Clean", run: str
) -> str | None:
    """Check the options of a replay, as `replay.replay_options` does."""
    # Imported when it is first needed: most store servers are asked for no replay.
    from replay import replay_options

    return replay_options.rejection_reason(bundle, requested, profiles, clean, run)


def main() -> int:
    """Run the store server until it is stopped, and return the exit status."""
    # The collector would take a sixth of the time of the imports, and look in vain. What is imported lives to the end.
    gc.disable()
    from store.server import main as run_store_server

    gc.freeze()
    gc.enable()
    return run_store_server(rejection_reason, helper_command=HELPER_COMMAND)


if __name__ == "__main__":
    sys.exit(main())
