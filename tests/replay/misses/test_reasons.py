"""Every reason for a miss has its title, a short name on the page, and says in the docs what to do."""

import re
from pathlib import Path
from typing import get_args

from proxy.trials.outcome import CAUSES
from replay.misses.miss import MISS_TITLES, Reason

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "ci.md"
VIEW = ROOT / "store" / "page" / "assets" / "views" / "miss.js"
NEVER_ON_THE_PAGE = {"unexpected"}
NEVER_IN_A_TRIAL = NEVER_ON_THE_PAGE | {"unknown_run", "interrupted"}


def test_every_reason_is_explained() -> None:
    [section] = re.findall(r"^## When a request misses$(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    reasons = re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|$", section, re.MULTILINE)
    assert sorted(reasons) == sorted(MISS_TITLES) == sorted(get_args(Reason.__value__))


def test_every_reason_has_a_short_name_where_many_are_listed() -> None:
    [names] = re.findall(r"^const REASONS = \{(.*?)^\};", VIEW.read_text(), re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"(\w+): ", names)) == set(MISS_TITLES) - NEVER_ON_THE_PAGE
    assert set(MISS_TITLES) - set(CAUSES) == NEVER_IN_A_TRIAL
