"""Every family of tokens that secret scanners know is recognised by its form alone."""

import re

import pytest

from calls.placeholder import PATTERN
from calls.redaction.redactor import Redactor
from tests.calls.secrets import KEY
from tests.calls.token_samples import FAMILIES, KEPT, token

REDACTOR = Redactor(key=KEY)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_token_of_a_known_family_is_replaced(family: str) -> None:
    for seed in range(6):
        made = token(family, seed)
        for before, after in (
            ("", ""),
            ("key ", " ok"),
            ('{"a": "', '"}'),
            ("\\n", "\\n"),
            ("=", "&"),
            ("\x1b[32m", "\x1b[0m"),
        ):
            new = REDACTOR.redact_body(f"{before}{made}{after}".encode())[0].decode()

            assert made not in new
            assert len(new) == len(before + made + after)
            assert re.fullmatch(f"{re.escape(before)}(?:{KEPT.get(family, '')}){PATTERN}{re.escape(after)}", new), new


def test_the_token_of_one_family_is_not_that_of_a_shorter_one() -> None:
    for family in FAMILIES:
        made = token(family)
        assert REDACTOR.redact_body(made.encode())[1] == 1, family
