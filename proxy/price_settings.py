"""Read the file that the setting `prices` names."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Most commands calculate no cost.
    from store.pricing.own_prices import OwnPrices

LARGEST_FILE = 4 << 20
"""Bytes."""


def read_prices(path: Path) -> "OwnPrices":
    """Read a file of prices, TOML or JSON. Raises ValueError that says what is wrong and what to do."""
    from store.pricing.own_prices import BadPrices, parse_own_prices

    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
        if len(data) > LARGEST_FILE:
            raise BadPrices(f"it has more than {LARGEST_FILE >> 20} MiB")
        return parse_own_prices(data.decode(), is_json=path.suffix.lower() == ".json")
    except (OSError, UnicodeDecodeError, BadPrices) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise ValueError(
            f"prices: cannot use {path}: {why}; write [[price]] tables with `model`, `input` and `output` (docs/prices.md)"
        ) from error


def own_prices(path: Path | None) -> "OwnPrices":
    """Return the prices of the setting, whose file was checked when it was loaded."""
    from store.pricing.own_prices import NO_PRICES

    return NO_PRICES if path is None else read_prices(path)
