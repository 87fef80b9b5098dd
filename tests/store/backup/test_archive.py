"""The archive of a backup: what was written is read again, and nothing that was cut or changed passes for whole."""

from pathlib import Path

import pytest

from store.backup.archive import (
    PIECE,
    ArchiveWriter,
    BadArchive,
    PieceWriter,
    check_archive,
    read_manifest,
    read_members,
)

CONTENT = {"files/keys/a.key": b"secret", "files/empty": b"", "tables/runs": bytes(range(256)) * (PIECE // 128) + b"."}


def write_archive(path: Path, contents: dict[str, bytes]) -> Path:
    with path.open("wb") as out:
        writer = ArchiveWriter(out, {"playhead": "1"})
        for name, data in contents.items():
            pieces = PieceWriter(writer, name)
            for start in range(0, len(data), 100_000):
                pieces.write(data[start : start + 100_000])
            pieces.finish()
        writer.finish()
    return path


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return write_archive(tmp_path / "backup.tar", CONTENT)


def test_what_was_written_is_read_again_in_pieces(archive: Path) -> None:
    assert check_archive(archive) == 6
    assert read_manifest(archive)["playhead"] == "1"
    found: dict[str, bytes] = {}
    for member in read_members(archive):
        assert len(member.data) <= PIECE
        found[member.piece_of] = found.get(member.piece_of, b"") + member.data
    assert {name: data for name, data in found.items() if name != "."} == CONTENT


def test_no_altered_byte_passes_unless_it_is_padding(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "backup.tar", {"files/a": b"secret" * 200, "tables/runs": bytes(900)})
    whole = archive.read_bytes()
    contents = list(read_members(archive))
    found = 0
    for at in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[at] ^= 0x5A
        archive.write_bytes(changed)
        try:
            check_archive(archive)
        except BadArchive:
            found += 1
        else:
            # What tar pads with: of its headers, everything has a checksum.
            assert list(read_members(archive)) == contents, at
    assert found > 1000


@pytest.mark.parametrize("kept", [0, 100, 512, 1500, 5000, -20000, -11000])
def test_an_archive_that_ends_early_is_refused(archive: Path, kept: int) -> None:
    archive.write_bytes(archive.read_bytes()[:kept])
    with pytest.raises(BadArchive, match=r"ends early|not a whole backup|no backup of Playhead"):
        check_archive(archive)


def test_what_is_no_backup_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "any"
    path.write_bytes(b"not a tar file " * 1000)
    with pytest.raises(BadArchive, match="not a whole backup"):
        check_archive(path)
    with path.open("wb") as out:
        ArchiveWriter(out, {"format": "playhead-backup/2"}).finish()
    with pytest.raises(
        BadArchive, match="its format is 'playhead-backup/2', and this Playhead reads playhead-backup/1"
    ):
        check_archive(path)
