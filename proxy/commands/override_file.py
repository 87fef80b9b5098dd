"""Read overrides from files and the command line before anything is started for them."""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calls.overrides.effect_values import parse_effect_words
from calls.overrides.override_toml import read_entries
from calls.overrides.overrides import BadOverride, read_overrides
from proxy.errors import Failure


def load_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """Read what `--override` was given, files and effects, as replay options (`replay/requested_options.py`).

    Raise Failure for a mistake, in a file with its line.
    """
    entries: list[Any] = []
    lines: list[int | None] = []
    files = []
    for words in arguments:
        entry = parse_effect_words(words)
        if entry is None:
            loaded = _load_file(Path(words))
            entries += loaded["overrides"]
            lines += loaded["lines"] or [None] * len(loaded["overrides"])
            files.append(words)
        else:
            entries.append(_checked_entry(words, entry))
            lines.append(None)
    if not arguments:
        return {}
    return {"overrides": entries, "lines": lines, "overrides_file": files[0] if files else "--override"}


def _checked_entry(words: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of an effect on the command line, whose value may be in a file (`@FILE`) or JSON."""
    value, kind = str(entry["value"]), entry["effect"].partition(":")[0]
    if value.startswith("@"):
        entry["value"] = _file_content(Path(value[1:]))
    elif kind in ("listing", "run") and value.startswith(("[", "{")):
        try:
            entry["value"] = json.loads(value)
        except ValueError as error:
            raise Failure(f"--override {words}: its value is not JSON: {error} (docs/effects.md)") from None
    try:
        read_overrides([entry])
    except BadOverride as error:
        raise Failure(f"--override {words}: {str(error).partition(': ')[2]} (docs/effects.md)") from None
    return entry


def _file_content(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Failure(
            f"cannot read {path}, the value of an override: {error.strerror}; name a file that exists"
        ) from error
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"$bytes": base64.b64encode(data).decode()}


def _load_file(path: Path) -> dict[str, Any]:
    try:
        found, lines = read_entries(path.read_text("utf-8"), is_json=path.suffix == ".json")
        read_overrides(found, lines)
    except OSError as error:
        raise Failure(f"cannot read the overrides {path}: {error.strerror}; name a file that exists") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not UTF-8; save it as such") from error
    except BadOverride as error:
        raise Failure(f"{path}: {error} (docs/forks.md)") from error
    return {"overrides": list(found), "lines": list(lines)}
