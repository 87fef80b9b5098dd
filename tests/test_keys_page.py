"""`docs/keys.md` says what is: its example is what the command prints, its tables have every class and fold, and no profile that there is not."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from calls.keys.profile import Folds
from calls.keys.profile_toml import parse_profiles
from calls.keys.rules import FieldClass
from store.active_profiles import load_profiles

PAGE = Path(__file__).resolve().parent.parent / "docs" / "keys.md"


def block(kind: str, having: str) -> str:
    """The block of this kind in which these words occur."""
    found: list[str] = re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    [text] = [text for text in found if having in text]
    return text


def rows() -> set[str]:
    """What the first columns of the page's tables name."""
    first = re.findall(r"^\| ([^|]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    return {name for cell in first for name in re.findall(r"`([^`]+)`", cell)}


def test_the_example_is_what_the_command_prints(tmp_path: Path) -> None:
    (tmp_path / "request.http").write_text(block("http", "POST https://"), "utf-8")
    shown = subprocess.run(
        [Path(sys.executable).parent / "playhead", "explain", "--request", "request.http"],
        cwd=tmp_path,
        # The page is as wide as nobody's terminal.
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = [line.rstrip() for line in (shown.stdout + shown.stderr).splitlines()]
    assert printed == block("text", "FATE").splitlines()


def test_every_profile_on_the_page_is_built_in() -> None:
    """The page need not have all: each dialect has a file of its own."""
    names = {profile.name for profile in load_profiles().profiles}
    assert {row for row in rows() if re.fullmatch(r"\w+/\d+", row)} <= names | {"tickets/1"}


@pytest.mark.parametrize(
    "name", [*get_args(FieldClass.__value__), *(name for name in Folds.__struct_fields__ if name != "own")]
)
def test_every_class_and_every_fold_is_on_the_page(name: str) -> None:
    assert name in rows()


def test_the_profile_on_the_page_is_one() -> None:
    [profile] = parse_profiles(block("toml", "tickets/1"))
    assert profile.folds.null == ("$.filters[*].owner",)
