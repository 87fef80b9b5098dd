"""Imported interactions are redacted and get ids and an order, as if they had been recorded."""

import gzip

import msgspec
from msgspec.structs import replace

from calls.model import Exchange, Request, Response
from calls.redaction.redactor import Redactor
from store.active_profiles import load_profiles
from store.bundle.bundle import read_bundle
from store.foreign.adopt import Adoption, adopt_bundle, redact_exchange
from store.foreign.contents import UNTIMED, Interaction, SkippedEntry
from store.foreign.parts import one_chunk_body

SECRET = "sk-proj-abcdefghijklmnopqrstuvwxyz0123456789"
NOON = 1_784_894_400_000_000_000
PROFILES = load_profiles(None)
REDACTOR = Redactor(key=b"k" * 32, profiles=PROFILES)


def interaction(asked: bytes = b"{}", answered: bytes = b"{}", started_at: int | None = None) -> Interaction:
    return Interaction(
        place="interaction 1",
        request=Request(
            method="POST",
            url="https://api.openai.com/v1/chat/completions",
            http_version="",
            headers=(("Authorization", f"Bearer {SECRET}"),),
            body=one_chunk_body(asked),
        ),
        response=Response(status=200, headers=(("content-type", "application/json"),), body=one_chunk_body(answered)),
        started_at=started_at,
        notes=(UNTIMED,),
    )


def adopt_run(*found: Interaction | SkippedEntry, run: str = "a") -> tuple[Adoption, list[Exchange]]:
    adoption = Adoption(run=run, redactor=REDACTOR, default_started_at=NOON)
    return adoption, list(adoption.adopt(found))


def test_secrets_are_gone_and_counted() -> None:
    packed = gzip.compress(f'{{"api_key": "{SECRET}"}}'.encode())
    found = interaction(asked=f'{{"text": "{SECRET}"}}'.encode(), answered=packed)
    found = msgspec.structs.replace(found, response=replace(found.response, headers=(("content-encoding", "gzip"),)))
    adoption, [made] = adopt_run(found)
    assert made.response is not None
    assert SECRET not in repr(made)
    assert SECRET.encode() not in gzip.decompress(made.response.body.data)
    assert made.response.body.reencoded
    assert (made.redactions, adoption.redactions) == (3, 3)
    assert redact_exchange(made, REDACTOR)[0] == made


def test_the_same_file_makes_the_same_exchanges_and_another_name_others() -> None:
    _, first = adopt_run(interaction(), interaction())
    _, again = adopt_run(interaction(), interaction())
    _, other = adopt_run(interaction(), interaction(), run="b")
    assert first == again
    assert len({one.id for one in (*first, *other)}) == 4


def test_the_order_is_that_of_the_file_also_where_its_times_say_nothing() -> None:
    times = [None, NOON + 5 * 10**9, NOON, None]
    _, made = adopt_run(*(interaction(started_at=at) for at in times))
    assert [one.started_at for one in made] == [NOON, NOON + 5 * 10**9, NOON + 5 * 10**9 + 1, NOON + 5 * 10**9 + 2]
    assert sorted(made, key=lambda one: (one.started_at, one.id)) == made
    assert {one.first_byte_at for one in made} == {None}


def test_skipped_and_unknown_parts_are_listed() -> None:
    adoption, made = adopt_run(interaction(), SkippedEntry(place="interaction 2", reason="broken"), interaction())
    assert (len(made), adoption.exchanges, adoption.notes) == (2, 2, {UNTIMED: 2})
    assert [one.place for one in adoption.skipped] == ["interaction 2"]


def test_a_reason_that_quotes_the_file_tells_no_secret() -> None:
    adoption, _ = adopt_run(SkippedEntry(place="interaction 1", reason=f"'nowhere?key={SECRET}' is not the address"))
    assert SECRET not in adoption.skipped[0].reason


def test_headers_are_added_where_they_lack_only() -> None:
    adoption = Adoption(
        run="a", redactor=REDACTOR, default_started_at=NOON, extra_headers=(("anthropic-version", "2023-06-01"),)
    )
    has = interaction()
    has = msgspec.structs.replace(has, request=replace(has.request, headers=(("Anthropic-Version", "2026-10-21"),)))
    lacking, having = adoption.adopt([interaction(), has])
    assert lacking.request.headers[-1] == ("anthropic-version", "2023-06-01")
    assert having.request.headers == (("Anthropic-Version", "2026-10-21"),)


def test_a_body_that_cannot_be_looked_through_is_withheld_with_a_gap() -> None:
    hidden = gzip.compress(SECRET.encode()) + b"and bytes that no client reads"
    found = interaction(answered=hidden)
    found = msgspec.structs.replace(found, response=replace(found.response, headers=(("content-encoding", "gzip"),)))
    adoption = Adoption(run="a", redactor=REDACTOR, default_started_at=NOON)
    bundle = read_bundle(adopt_bundle(adoption, [found], PROFILES.digest, "a.yaml"))
    assert SECRET not in repr(bundle)
    [gap] = bundle.gaps
    assert (gap.run, gap.exchange, bundle.exchanges[0].is_truncated) == ("a", bundle.exchanges[0].id, True)


def test_a_bundle_says_which_file_it_is_from() -> None:
    bundle = read_bundle(
        adopt_bundle(
            Adoption(run="a", redactor=REDACTOR, default_started_at=NOON), [interaction()], "sha256:00", "a.yaml"
        )
    )
    assert bundle.run == {"id": "a", "labels": {"imported_from": "a.yaml"}}
