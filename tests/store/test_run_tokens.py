"""The token of a run: whose it is, and that nobody makes one without the key."""

import re
from pathlib import Path
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from store.run_tokens import RunTokens

RUNS = st.from_regex(r"[A-Za-z0-9._:-]{1,128}", fullmatch=True)
TOKENS = RunTokens(b"k" * 32, Path("/nonexistent"))


@given(RUNS, RUNS)
def test_a_token_opens_its_own_run_alone(one: str, other: str) -> None:
    token = TOKENS.token(one)
    assert TOKENS.run_of(token) == one
    assert TOKENS.is_token_of(one, token)
    assert TOKENS.is_token_of(other, token) == (re.sub(r":(g[0-9]+|live-[0-9a-f]+)$", "", other) == one or other == one)
    assert quote(token, safe="") == token
    assert RunTokens(b"j" * 32, Path()).run_of(token) is None


@given(RUNS, st.text())
def test_no_other_text_is_a_token(run: str, presented: str) -> None:
    assert TOKENS.run_of(presented) is None
    assert not TOKENS.is_token_of(run, presented)


def test_a_claim_holds_until_it_is_released(tmp_path: Path) -> None:
    tokens = RunTokens(b"k" * 32, tmp_path)
    for run in ("..", ".", "team:4", "a" * 128):
        assert tokens.claim(run) == tokens.claim(run) == tokens.token(run)
        assert [tokens.is_claimed(name) for name in (run, f"{run}:g3", "other")] == [True, True, False]
        tokens.release(run)
        tokens.release(run)
        assert not tokens.is_claimed(run)
