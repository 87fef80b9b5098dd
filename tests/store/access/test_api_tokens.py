"""The file of tokens: what it holds, and what becomes of it."""

from pathlib import Path

import pytest

from store.access.api_tokens import ApiTokens, TokenFileError

NOW = 1_700_000_000 * 10**9


def test_the_file_holds_no_token_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    token, made = ApiTokens(path).create("reader", "web", ["runs:read"], NOW)
    assert token not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert ApiTokens(path).find(token) == made
    assert ApiTokens(path).find(token + "x") is None
    assert ApiTokens(path).find("") is None


def test_a_change_by_another_process_is_seen(tmp_path: Path) -> None:
    ours, theirs = (ApiTokens(tmp_path / "tokens.json") for _ in range(2))
    token, _ = theirs.create("reader", "web", ["runs:read"], NOW, NOW + 10)
    found = ours.find(token)
    assert found is not None
    assert [found.state(NOW + ahead) for ahead in (0, 9, 10)] == ["active", "active", "expired"]
    theirs.revoke("reader", NOW + 1)
    assert (again := ours.find(token)) is not None
    assert again.state(NOW) == "revoked"
    ours.create("reader", "web", ["admin"], NOW + 2)
    assert [one.scopes for one in theirs.list_tokens()] == [("runs:read",), ("admin",)]


def test_names_are_unique_and_what_does_not_exist_is_not_revoked(tmp_path: Path) -> None:
    tokens = ApiTokens(tmp_path / "tokens.json")
    tokens.create("reader", "web", ["runs:read"], NOW)
    with pytest.raises(TokenFileError, match="there is a token named reader"):
        tokens.create("reader", "web", ["admin"], NOW)
    with pytest.raises(TokenFileError, match="there is no token nobody"):
        tokens.revoke("nobody", NOW)


def test_a_file_that_others_can_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    tokens = ApiTokens(path)
    token, made = tokens.create("reader", "web", ["runs:read"], NOW)
    assert tokens.find(token) == made
    path.chmod(0o644)
    with pytest.raises(TokenFileError, match="can be read by others"):
        tokens.find(token)
    path.chmod(0o600)
    assert tokens.find(token) == made
    path.write_text('{"version": 2}')
    with pytest.raises(TokenFileError, match="is invalid"):
        tokens.find(token)
    with pytest.raises(TokenFileError, match="cannot be read"):
        ApiTokens(path / "below").find(token)
