"""How the exports are doing, for `/metrics` and `/readyz`."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from store.otlp.sender import ExportState

_COUNTERS: Final = ("requests", "retries", "refused", "runs", "lost")


def export_lines(states: "Iterable[ExportState]") -> Iterator[str]:
    """Yield lines in the text format of Prometheus; none without exports."""
    known = list(states)
    for name in _COUNTERS if known else ():
        yield f"# TYPE playhead_store_export_{name}_total counter"
        yield from (
            f'playhead_store_export_{name}_total{{endpoint="{_escape(one.endpoint)}"}} {getattr(one, name)}'
            for one in known
        )
    if known:
        yield "# TYPE playhead_store_export_trouble gauge"
        yield from (
            f'playhead_store_export_trouble{{endpoint="{_escape(one.endpoint)}"}} {int(one.trouble is not None)}'
            for one in known
        )


def export_troubles(states: "Iterable[ExportState]") -> dict[str, str]:
    """Return what prevents exports, by endpoint. It delays nothing else."""
    return {one.endpoint: one.trouble for one in states if one.trouble}


def _escape(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
