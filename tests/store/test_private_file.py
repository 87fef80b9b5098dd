"""Who may have read a secret file: real users, groups and modes, also those that a Kubernetes `fsGroup` leaves behind."""

import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from proxy.errors import Failure
from proxy.trust import ca
from store.datadir import DataDirError, open_data_dir

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to users and groups")

US = 10001
FSGROUP = 4242
"""In no account file, as in a container."""

SECRETS = ("ca.key", "redaction.key", "api.token", "recording.token", "run-tokens.key")

NOGROUP = 65534
"""The primary group of the account `nobody`, so not of ours alone."""


def as_user(action: Callable[[], object], groups: Sequence[int]) -> str:
    """Run the action in a process of the user `US` with these supplementary groups; what it raised, or nothing."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        said = ""
        try:
            os.setgroups(groups)
            os.setgid(US)
            os.setuid(US)
            action()
        except (Failure, DataDirError) as error:
            said = str(error)
        except BaseException:  # noqa: BLE001 - it is the whole report of that process
            said = traceback.format_exc()
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as words:
        found = words.read()
    os.waitpid(child, 0)
    return found


@pytest.fixture(scope="module")
def made_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with all secrets. It is made here, so that nothing is left for a process of `US` to import."""
    root = tmp_path_factory.mktemp("made") / "data"
    use_secrets(root)
    return root


@pytest.fixture
def data(made_data: Path) -> Iterator[Path]:
    """A copy of it, of `US`.

    Outside pytest's own directories: each pytest that starts, also one that a test starts, closes those to other users.
    """
    with tempfile.TemporaryDirectory(prefix="playhead-private-") as directory:
        Path(directory).chmod(0o755)
        root = shutil.copytree(made_data, Path(directory) / "data", symlinks=True)
        for path in (root, *root.rglob("*")):
            os.chown(path, US, US)
        yield root


def use_secrets(root: Path) -> None:
    """What a worker does at start: read the keys and tokens, or make them."""
    data = open_data_dir(root)
    ca.ensure_ca(data.keys)
    data.redaction_key()
    data.api_token()
    data.recording_token()
    data.run_tokens()


def widen_as_kubelet(root: Path, group: int) -> None:
    """What the kubelet does to a volume for `fsGroup` (pkg/volume/volume_linux.go, changeFilePermission)."""
    for path in (root, *root.rglob("*")):
        is_directory = path.is_dir()
        os.chown(path, -1, group)
        path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o2770 if is_directory else 0o660))


def test_a_pod_that_is_recreated_reads_its_widened_secrets(data: Path) -> None:
    before = (data / "keys" / "ca.pem").read_bytes()
    widen_as_kubelet(data, FSGROUP)
    assert stat.S_IMODE((data / "keys" / "ca.key").stat().st_mode) == 0o660
    assert as_user(lambda: use_secrets(data), (FSGROUP,)) == ""
    assert (data / "keys" / "ca.pem").read_bytes() == before


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    ("owner", "group", "mode", "groups", "words"),
    [
        pytest.param(US, US, 0o640, (), "", id="our own group reads"),
        pytest.param(US, FSGROUP, 0o660, (FSGROUP,), "", id="a supplementary group of ours alone"),
        pytest.param(
            US, FSGROUP, 0o640, (), "for the group 4242, which is not one of ours", id="a foreign group reads"
        ),
        pytest.param(US, NOGROUP, 0o640, (NOGROUP,), "which also has ", id="a group with another member"),
        pytest.param(US, US, 0o604, (), "can be read by others", id="others read"),
        pytest.param(US, FSGROUP, 0o666, (FSGROUP,), "can be read by others", id="others beside our group"),
        pytest.param(0, US, 0o640, (), "belongs to user 0", id="of another user"),
    ],
)
def test_a_secret_is_read_where_nobody_else_can_read_it(
    data: Path, secret: str, owner: int, group: int, mode: int, groups: tuple[int, ...], words: str
) -> None:
    file = data / "keys" / secret
    os.chown(file, owner, group)
    file.chmod(mode)
    said = as_user(lambda: use_secrets(data), groups)
    assert words in said
    assert bool(said) == bool(words), said
    if words:
        assert str(file) in said


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_that_is_a_link_or_a_pipe_is_refused(data: Path, secret: str) -> None:
    file = data / "keys" / secret
    file.rename(data / "elsewhere")
    file.symlink_to(data / "elsewhere")
    assert "symbolic link" in as_user(lambda: use_secrets(data), ())
    file.unlink()
    os.mkfifo(file)
    os.chown(file, US, US)
    assert "not a regular file" in as_user(lambda: use_secrets(data), ())


def test_a_directory_of_secrets_that_others_can_change_is_refused(data: Path) -> None:
    keys = data / "keys"
    os.chown(keys, US, FSGROUP)
    keys.chmod(0o770)
    assert "can be changed by others" in as_user(lambda: use_secrets(data), ())
    assert as_user(lambda: use_secrets(data), (FSGROUP,)) == ""
