"""Into which project and run a client records, by its credentials."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from proxy.recording.run_identity import identify
from proxy.wire.access import Access, Credentials
from store.access.api_tokens import ApiTokens
from store.run_tokens import RunTokens

NOW = 1_700_000_000 * 10**9


@pytest.fixture
def tokens(tmp_path: Path) -> ApiTokens:
    return ApiTokens(tmp_path / "tokens.json")


def access(tokens: ApiTokens, tmp_path: Path, *recording: str, project: str = "default") -> Access:
    run_tokens = RunTokens(b"k" * 32, tmp_path)
    return Access(tokens=recording, run_tokens=run_tokens, api_tokens=tokens, project=project, now=lambda: NOW)


def recorded_run(access: Access, credentials: Credentials, *headers: tuple[str, str]) -> str:
    return identify(headers, credentials, "owner", project=access.project_of(credentials)).run


def test_the_token_decides_the_project_whatever_the_client_names(tokens: ApiTokens, tmp_path: Path) -> None:
    web, _ = tokens.create("web", "web", ["record"], NOW)
    every, _ = tokens.create("every", "*", ["record"], NOW)
    guarded = access(tokens, tmp_path, "the-recording-token", project="own")
    run_token = RunTokens(b"k" * 32, tmp_path).token("shop/night")
    assert recorded_run(guarded, ("night", web)) == "web/night"
    assert recorded_run(guarded, ("", web)) == "web/owner"
    assert recorded_run(guarded, ("", web), ("x-session-id", "s")) == "web/s"
    assert recorded_run(guarded, ("night", run_token)) == "shop/night"
    assert recorded_run(guarded, ("night", every)) == "own/night"
    assert recorded_run(guarded, ("night", "the-recording-token")) == "own/night"
    assert recorded_run(guarded, None) == "own/owner"
    assert recorded_run(guarded, ("night", web), ("x-session-id", "shop/night")) == "web/night"
    assert recorded_run(guarded, ("", web), ("x-session-id", "shop/night")).startswith("web/id:")


def test_only_living_tokens_with_the_scope_record_are_admitted(tokens: ApiTokens, tmp_path: Path) -> None:
    record, _ = tokens.create("record", "web", ["record"], NOW)
    reader, _ = tokens.create("reader", "web", ["runs:read", "admin"], NOW)
    expired, _ = tokens.create("expired", "web", ["record"], NOW - 2, NOW - 1)
    revoked, _ = tokens.create("revoked", "web", ["record"], NOW)
    tokens.revoke("revoked", NOW)
    for recording in ((), ("the-recording-token",)):
        guarded = access(tokens, tmp_path, *recording)
        admitted = [guarded.is_admitted(("night", token)) for token in (record, reader, expired, revoked)]
        assert admitted == [True, False, False, False]
        assert guarded.is_admitted(("night", "anything")) is not bool(recording)
        assert guarded.is_admitted(None) is not bool(recording)


def test_a_claim_holds_in_its_project_alone(tokens: ApiTokens, tmp_path: Path) -> None:
    web, _ = tokens.create("web", "web", ["record"], NOW)
    guarded, run_tokens = access(tokens, tmp_path), RunTokens(b"k" * 32, tmp_path)
    own = run_tokens.claim("web/night")
    assert not guarded.can_write("web/night", ("night", web))
    assert guarded.can_write("web/night", ("night", own))
    assert guarded.can_write("night", ("night", "anything"))
    assert not guarded.can_write("web/night", ("night", run_tokens.token("night")))
    run_tokens.release("web/night")
    assert guarded.can_write("web/night", ("night", web))


def test_a_token_that_is_known_no_more_records_nothing(tokens: ApiTokens, tmp_path: Path) -> None:
    web, _ = tokens.create("web", "web", ["record"], NOW)
    short, _ = tokens.create("short", "web", ["record"], NOW, NOW + 1)
    file = tmp_path / "tokens.json"
    content = file.read_bytes()
    for recording in ((), ("the-recording-token",)):
        guarded = access(tokens, tmp_path, *recording)
        captive = replace(guarded, run_tokens=None)
        late = replace(guarded, now=lambda: NOW + 1)
        for damaged in (b"", content[:100], None):
            assert guarded.is_admitted(("night", web))
            assert guarded.can_write("web/night", ("night", web))
            file.unlink()
            if damaged is not None:
                file.write_bytes(damaged)
                file.chmod(0o600)
            assert not guarded.is_admitted(("night", web))
            for one in (guarded, captive):
                # Not into the project of clients without a token either, on a connection that was admitted before.
                assert not one.can_write(recorded_run(one, ("night", web)), ("night", web))
            assert guarded.can_write("night", ("night", "anything"))
            file.write_bytes(content)
            file.chmod(0o600)
        assert guarded.can_write("web/night", ("night", short))
        assert not late.can_write("web/night", ("night", short))
    assert access(tokens, tmp_path, "ph_chosen-by-the-user").is_admitted(("night", "ph_chosen-by-the-user"))
