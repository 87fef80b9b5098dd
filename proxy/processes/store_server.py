"""Run the store server with the check of replay options, which the store does not import: `python -m proxy.processes.store_server`."""

import gc
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from proxy.worker.process_limits import forbid_core_files, raise_file_limit

if TYPE_CHECKING:
    from calls.keys.profile import Profiles
    from calls.redaction.call import Clean
    from store.bundle.bundle import Bundle
    from store.embedded.early_start import EarlyStart

HELPER_COMMAND: Final = (sys.executable, "-m", "proxy.processes.store_helper")


def rejection_reason(
    bundle: "Bundle", requested: Mapping[str, Any], profiles: "Profiles", clean: "Clean", run: str
) -> str | None:
    """Check the options of a replay, as `replay.requested_options` does."""
    # Imported when it is first needed: most store servers are asked for no replay.
    from replay import requested_options

    return requested_options.rejection_reason(bundle, requested, profiles, clean, run)


def main() -> int:
    """Run the store server until it is stopped, and return the exit status."""
    # The collector would take a sixth of the time of the imports, and look in vain. What is imported lives to the end.
    gc.disable()
    # Clients of the API take files, too.
    raise_file_limit()
    forbid_core_files()
    line = sys.stdin.buffer.readline()
    postgres = _start_postgres(line)
    from store.server import main as run_store_server

    collect_seldom()
    return run_store_server(line, rejection_reason, helper_command=HELPER_COMMAND, postgres=postgres)


def collect_seldom() -> None:
    """Begin to collect garbage: of what is there now nothing, and ten times less often than Python does."""
    gc.freeze()
    # What a batch of calls is made of is no garbage before the batch is stored: this saves a sixth of the store server's CPU for a call.
    gc.set_threshold(20_000, 10, 10)
    gc.enable()


def _start_postgres(line: bytes) -> "EarlyStart | None":
    """Begin to start the embedded Postgres, which waits more than it computes: the imports take as long. None: another is used."""
    import msgspec

    from store.datadir import DataDirError, open_data_dir
    from store.embedded.early_start import EarlyStart
    from store.server_config import StoreServerConfig

    try:
        config = msgspec.json.decode(line, type=StoreServerConfig)
        return None if config.database_url else EarlyStart(open_data_dir(Path(config.data)).postgres)
    except (msgspec.DecodeError, DataDirError):
        # The store server meets the same error, and reports it.
        return None


if __name__ == "__main__":
    sys.exit(main())
