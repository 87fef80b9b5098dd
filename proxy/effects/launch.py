"""The variables that load the effects hook into a command, and those that are pinned; and how the command ended."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from proxy.capture.control_path import effects_path
from proxy.capture.pinned import variables_to_pin, with_pinned

# `calls.effects` and `replay.effects` are imported when a command has effects: most have none.

HOOK: Final = Path(__file__).parents[1] / "clients" / "effects"
"""The directory with the hook's `sitecustomize`."""


class EffectsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the processes of a command have the hook."""

    packages: tuple[str, ...] = ()
    """Installed packages that count as the program itself."""

    pinned: Mapping[str, str] | None = msgspec.field(default=None)
    """In a replay, the variables that the recording was made with."""


def effects_environment(
    environment: Mapping[str, str],
    base: Mapping[str, str],
    control: str,
    run: str,
    token: str | None,
    options: EffectsOptions,
) -> dict[str, str]:
    """Return a command's environment with the hook; `base` is the user's, from which it was made."""
    pinned = dict(options.pinned) if options.pinned is not None else variables_to_pin(environment)
    changed = with_pinned(environment, pinned)
    own = sorted(name for name, value in environment.items() if base.get(name) != value)
    paths = (str(HOOK), changed.get("PYTHONPATH", ""))
    return {
        **changed,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PLAYHEAD_EFFECTS": str(effects_path(control)),
        "PLAYHEAD_EFFECTS_RUN": run,
        "PLAYHEAD_EFFECTS_TOKEN": token or "",
        "PLAYHEAD_EFFECTS_PACKAGES": ",".join(options.packages),
        "PLAYHEAD_EFFECTS_OWN": ",".join((*own, "PYTHONPATH")),
        "PLAYHEAD_EFFECTS_PROCESS": "0",
    }


def note_exit(control: str, run: str, token: str | None, code: int) -> bool:
    """Record how a command ended."""
    from proxy.effects.frames import send_effects
    from replay.effects import COMMAND

    hello: dict[str, Any] = {"run": run, "token": token, "process": COMMAND}
    return send_effects(effects_path(control), hello, [{"kind": "process.exit", "results": [code]}])
