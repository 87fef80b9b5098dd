"""Checkpoints and signed notes, judged by the vectors of Go's `golang.org/x/mod/sumdb/note`."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from calls.proof.checkpoint import (
    Checkpoint,
    InvalidNote,
    VerifierKey,
    parse_note,
    parse_verifier_key,
    sign_checkpoint,
    verifier_key,
)

# https://pkg.go.dev/golang.org/x/mod/sumdb/note
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_SEED = base64.b64decode("AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz")[1:]
NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "\u2014 PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
OTHER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
CHECKPOINT = Checkpoint("playhead/0/default", 3, bytes(range(32)))


def test_the_published_note_and_keys_are_read_and_made() -> None:
    key = parse_verifier_key(NEUMANN)
    assert str(key) == NEUMANN
    assert verifier_key("PeterNeumann", Ed25519PrivateKey.from_private_bytes(NEUMANN_SEED)) == key
    note = parse_note(NOTE)
    assert note.is_signed_by(key)
    assert not note.is_signed_by(VerifierKey("PeterNeumann", key.public_key[::-1]))
    with pytest.raises(InvalidNote, match="not a checkpoint"):
        _ = note.checkpoint


def test_a_checkpoint_comes_back_and_carries_both_signatures() -> None:
    note = parse_note(sign_checkpoint(CHECKPOINT, [KEY, OTHER]))
    assert note.checkpoint == CHECKPOINT
    assert all(note.is_signed_by(verifier_key(CHECKPOINT.origin, key)) for key in (KEY, OTHER))
    assert not note.is_signed_by(verifier_key("playhead/0/other", KEY))


def test_a_witness_signs_the_time_too() -> None:
    text = str(CHECKPOINT)
    witness = VerifierKey("witness.example.com", OTHER.public_key().public_bytes_raw(), "witness")
    time = 1_795_392_000
    signature = OTHER.sign(f"cosignature/v1\ntime {time}\n{text}".encode())

    def note(seconds: int) -> str:
        line = base64.b64encode(witness.key_id + seconds.to_bytes(8) + signature).decode()
        return sign_checkpoint(CHECKPOINT, [KEY]) + f"\u2014 {witness.name} {line}\n"

    assert parse_note(note(time)).is_signed_by(parse_verifier_key(str(witness)))
    assert not parse_note(note(time + 1)).is_signed_by(witness)


@given(st.integers(0), st.integers(1, 255))
def test_a_note_with_any_byte_changed_is_not_signed_any_more(place: int, change: int) -> None:
    data = bytearray(sign_checkpoint(CHECKPOINT, [KEY]).encode())
    data[place % len(data)] ^= change
    try:
        note = parse_note(data.decode())
    except (InvalidNote, UnicodeDecodeError):
        return
    assert not note.is_signed_by(verifier_key(CHECKPOINT.origin, KEY))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "name+00000000+" + base64.b64encode(b"\x01" + bytes(32)).decode(),
        NEUMANN.replace("+AR", "+Ag"),
        NEUMANN[:-4],
        "+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW",
    ],
)
def test_an_invalid_key_is_refused(text: str) -> None:
    with pytest.raises(InvalidNote):
        parse_verifier_key(text)


@pytest.mark.parametrize(
    "note",
    [
        "",
        "text\n",
        NOTE[:-1],
        NOTE + "\n",
        NOTE.replace("\u2014", "-"),
        NOTE.replace("x08go", "x08g"),
        NOTE.replace("If", "I\tf"),
        NOTE + "x" * (64 << 10) + "\n",
    ],
)
def test_an_invalid_note_is_refused(note: str) -> None:
    with pytest.raises(InvalidNote):
        parse_note(note)


@pytest.mark.parametrize("size", ["", "-1", "01", "1.0", "9" * 20])
def test_an_invalid_size_is_refused(size: str) -> None:
    note = sign_checkpoint(CHECKPOINT, [KEY]).replace("\n3\n", f"\n{size}\n")
    with pytest.raises(InvalidNote, match="not a checkpoint"):
        _ = parse_note(note).checkpoint
