"""Every reason for a miss has its title, and says in the docs what to do."""

import re
from pathlib import Path
from typing import get_args

from replay.misses.miss import MISS_TITLES, Reason

PAGE = Path(__file__).parents[3] / "docs" / "ci.md"


def test_every_reason_is_explained() -> None:
    [section] = re.findall(r"^## When a request misses$(.*?)^## ", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    reasons = re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|$", section, re.MULTILINE)
    assert sorted(reasons) == sorted(MISS_TITLES) == sorted(get_args(Reason.__value__))
