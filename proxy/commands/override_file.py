"""Read an override file before anything is started for it."""

from pathlib import Path
from typing import Any

from calls.overrides.override_toml import read_entries
from calls.overrides.overrides import BadOverride, read_overrides
from proxy.errors import Failure


def load_overrides(path: Path | None) -> dict[str, Any]:
    """Read an override file as replay options (`replay/replay_options.py`). Raise Failure with the line of a mistake."""
    if path is None:
        return {}
    try:
        found, lines = read_entries(path.read_text("utf-8"), is_json=path.suffix == ".json")
        read_overrides(found, lines)
    except OSError as error:
        raise Failure(f"cannot read the overrides {path}: {error.strerror}; name a file that exists") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not UTF-8; save it as such") from error
    except BadOverride as error:
        raise Failure(f"{path}: {error} (docs/forks.md)") from error
    return {"overrides": list(found), "lines": list(lines), "overrides_file": str(path)}
