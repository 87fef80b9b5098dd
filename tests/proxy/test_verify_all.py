"""`playhead verify --all` looks into every run, and its verdict is the worst of them."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from proxy.cli.keep.proof import _Trust, _verify_lines, show_verification, verify_all
from proxy.errors import Failure
from proxy.processes.store_client import Api
from store.bundle.bundle import bundle_lines
from store.proof import bundle_proof
from tests.store.exchanges import bundle, exchange

SHAPE: dict[str, Any] = {"findings": [], "erased": [], "seals": [], "signed": None, "proven": 7, "unproven": 0}


class StoreServer:
    """Answers as a store server with these runs does; one without a verdict was erased meanwhile."""

    def __init__(self, **verdicts: str | None) -> None:
        self.verdicts = verdicts
        self.exchanges: dict[str, int] = {}
        self.requests: list[list[str]] = []

    def get_patiently(self, path: str) -> dict[str, Any]:
        assert path == "/verify"
        return SHAPE | {"run": None, "verdict": "verified"}

    def get(self, path: str, run: list[str] | None = None) -> dict[str, Any]:
        assert path == "/verifications"
        self.requests.append(run or [])
        finding = {"change": "altered", "element": "exchange 1 (step 3)", "detail": "its head differs"}
        return {
            "items": [
                SHAPE | {"run": name, "verdict": verdict, "findings": [finding] if verdict == "failed" else []}
                for name in run or []
                if (verdict := self.verdicts[name]) is not None
            ]
        }

    def list_items(self, path: str, **_: Any) -> Iterator[dict[str, Any]]:
        assert path == "/runs"
        return ({"id": run, "exchanges": self.exchanges.get(run, 5)} for run in self.verdicts)


@pytest.mark.parametrize(
    ("server", "verdict", "words"),
    [
        (
            StoreServer(a="verified", gone=None),
            "verified",
            "all runs: verified; 1 run looked into, and what the 7 leaves",
        ),
        (
            StoreServer(a="verified", old="unproven"),
            "unproven",
            "of 2 runs, 1 have something without a record or seal: old",
        ),
        (StoreServer(a="failed", old="unproven"), "failed", "altered: run a: exchange 1 (step 3): its head differs"),
    ],
)
def test_the_worst_of_all_runs_decides(
    server: StoreServer, verdict: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = verify_all(cast(Api, server))
    assert found["verdict"] == verdict
    show_verification(found)
    assert words in capsys.readouterr().out


def test_small_runs_are_verified_together_and_large_ones_alone() -> None:
    server = StoreServer(**{f"run-{number}": "verified" for number in range(120)})
    server.exchanges = {"run-7": 5000}
    assert verify_all(cast(Api, server))["runs"] == 120
    assert [len(runs) for runs in server.requests] == [7, 1, 50, 50, 12]


def test_a_file_that_is_too_large_is_not_called_altered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_proof, "LARGEST_IN_MEMORY", 1000)
    lines = list(bundle_lines(bundle([exchange(b"x" * 1001, b"")])))
    with pytest.raises(Failure, match=r"^long.jsonl was not verified: the bodies up to line 2 of the bundle are"):
        _verify_lines(lines, "long.jsonl", _Trust([], None))
