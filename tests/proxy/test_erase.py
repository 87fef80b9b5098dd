"""`playhead erase --match` takes as many steps as there are, and says how far it came if one fails."""

from typing import Any, cast

import pytest

from proxy.cli.keep.erase import _post_steps, _show
from proxy.errors import Failure
from proxy.processes.store_client import Api


def step(exchanges: list[str], next: str | None, looked_at: int = 10) -> dict[str, Any]:  # noqa: A002 - what it is
    files = {"spool_bytes": 5, "replays": 1, "damaged": 0}
    done = {"erased": True, "runs": ["b", "a"], "exchanges": exchanges, "rows": {"calls": len(exchanges)}}
    return done | {"files": files, "objects": 1, "remains": ["same"], "next": next, "looked_at": looked_at}


class FakeApi:
    """Answers requests for erasures, one after the other."""

    def __init__(self, *answers: dict[str, Any] | Failure) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []

    def post(self, path: str, *, json: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert (path, timeout > 60) == ("/erasures", True)
        self.bodies.append(json)
        answer = self.answers.pop(0)
        if isinstance(answer, Failure):
            raise answer
        return answer


def test_the_steps_of_an_erasure_add_up() -> None:
    api = FakeApi(step(["1", "2"], "2"), step(["3"], "day:0001-01-01"), step([], None, 0))
    done = _post_steps(cast("Api", api), {"match": "$.a=1"})
    assert [body.get("after") for body in api.bodies] == [None, "2", "day:0001-01-01"]
    assert (done["exchanges"], done["runs"], done["rows"]) == (["1", "2", "3"], ["a", "b"], {"calls": 3})
    assert (done["looked_at"], done["objects"], done["remains"], done["next"]) == (20, 3, ["same"], None)
    assert done["files"] == {"spool_bytes": 5, "replays": 3, "damaged": 0}


def test_what_was_done_is_said_when_a_step_fails() -> None:
    api = FakeApi(step(["1", "2"], "2"), Failure("the store server is gone"))
    with pytest.raises(Failure, match="gone; looked into 10 exchanges, erased 2: the same command again does the rest"):
        _post_steps(cast("Api", api), {"match": "$.a=1"})


@pytest.mark.parametrize("is_erased", [False, True])
def test_an_erasure_of_nothing_but_reports_is_shown(is_erased: bool, capsys: pytest.CaptureFixture[str]) -> None:
    _show(step([], None) | {"runs": [], "rows": {"replays": 2}, "erased": is_erased})
    said = capsys.readouterr().out
    assert said.startswith("erased reports" if is_erased else "would erase reports")
    assert ("2 rows of the table replays" in said) == is_erased
