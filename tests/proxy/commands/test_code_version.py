"""The labels that name the version of the code."""

import shutil
import subprocess
from pathlib import Path

import pytest

from proxy.commands import code_version
from proxy.commands.code_version import add_version, code_labels

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(directory: Path, *arguments: str) -> str:
    """Run Git as nobody in particular."""
    who = ("-c", "user.name=n", "-c", "user.email=e@example.com", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", directory, *who, *arguments], check=True, capture_output=True, text=True).stdout


def test_the_commit_is_named_and_whether_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert code_labels(tmp_path) == {}
    git(tmp_path, "init", "-q")
    assert code_labels(tmp_path) == {}
    inner, agent, touched = tmp_path / "src", tmp_path / "src" / "agent.py", tmp_path / "touched"
    inner.mkdir()
    agent.write_text("print(1)")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "agent")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (inner / "untracked").touch()
    # The file system monitor that the repository names is not run.
    git(tmp_path, "config", "core.fsmonitor", f"touch {touched}; false")
    assert code_labels(inner) == {"git": commit, "git-dirty": "false"}
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    agent.write_text("print(2)")
    assert code_labels(inner) == {"git": commit, "git-dirty": "true"}
    assert not touched.exists()
    monkeypatch.setattr(code_version, "TIMEOUT", 0.0)
    assert code_labels(inner) == {}


def test_what_is_added_to_a_run_keeps_the_versions_that_it_has() -> None:
    first, second = {"git": "aaa", "git-dirty": "true"}, {"git": "bbb", "git-dirty": "false"}
    both = add_version(first, second | {"team": "support"})
    assert both == {"git": "aaa, bbb", "git-dirty": "true, false", "team": "support"}
    assert add_version(both, second) == {"git": "aaa, bbb", "git-dirty": "true, false"}
    assert add_version(both, first) == {"git": "bbb, aaa", "git-dirty": "false, true"}
    assert add_version({"git": "aaa"}, second) == add_version({}, second) == second
    assert add_version(first, {"team": "support"}) == {"team": "support"}
    versions: dict[str, str] = {}
    for number in range(20):
        versions = add_version(versions, {"git": str(number), "git-dirty": "false"})
    assert versions["git"].split(", ") == [str(number) for number in range(10, 20)]
