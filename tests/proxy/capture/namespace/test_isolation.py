"""The reason why a command is not captive names the step, and the system setting that forbids it."""

import errno
from pathlib import Path

import pytest

from proxy.capture.command import CommandResult, isolation_lines
from proxy.capture.namespace import isolation
from proxy.capture.namespace.isolation import step_failure, unsupported_reason, way_to_allow


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system whose settings forbid nothing. Tests write settings that do."""
    for name in ("APPARMOR", "CLONE"):
        monkeypatch.setattr(isolation, name, str(tmp_path / name))
    monkeypatch.setattr(isolation, "LIMITS", str(tmp_path))
    monkeypatch.setattr(isolation, "_is_filtered", lambda: False)
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "value", "step", "way"),
    [
        ("CLONE", "0", "namespaces", "sysctl kernel.unprivileged_userns_clone=1"),
        ("max_user_namespaces", "0", "namespaces", "sysctl user.max_user_namespaces=15000"),
        ("max_net_namespaces", "0", "namespaces", "sysctl user.max_net_namespaces=15000"),
        ("max_mnt_namespaces", "0", "namespaces", "sysctl user.max_mnt_namespaces=15000"),
        # Ubuntu allows the namespace but restricts its rights, so that the mount fails.
        ("APPARMOR", "1", "mount", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
        ("APPARMOR", "1", "network", "sysctl kernel.apparmor_restrict_unprivileged_userns=0"),
    ],
)
def test_a_setting_that_forbids_it_is_named_with_its_remedy(
    settings: Path, name: str, value: str, step: str, way: str
) -> None:
    (settings / name).write_text(f"{value}\n")
    assert way in way_to_allow(step, errno.EPERM)


def test_a_containers_filter_is_named(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_is_filtered", lambda: True)
    assert "--security-opt seccomp=unconfined" in way_to_allow("namespaces", errno.EPERM)


def test_a_kernel_without_packet_rules_is_named(settings: Path) -> None:
    words = str(step_failure("rules", errno.EOPNOTSUPP))
    assert words.startswith("redirecting its connections (nf_tables) failed: Operation not supported")
    assert "modprobe -a nf_tables nft_chain_nat nft_redir" in words


def test_a_limit_is_not_called_a_full_disk(settings: Path) -> None:
    assert "No space left" not in str(step_failure("namespaces", errno.ENOSPC))


def test_a_file_that_cannot_be_mounted_is_named(settings: Path) -> None:
    assert "(/etc/ssl/certs)" in str(step_failure("mount", errno.EACCES, "/etc/ssl/certs"))


def test_another_system_than_linux_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert "this is darwin" in str(unsupported_reason())


def test_a_summary_names_what_passed_and_how_to_allow_what_was_refused() -> None:
    passed = {"destination": "db:5432", "protocol": "tcp", "outcome": "passed", "reason": "", "count": 2}
    refused = passed | {"destination": "127.0.0.1:6379", "outcome": "refused", "reason": "see --allow-local"}
    quic = passed | {"destination": "1.1.1.1:443", "protocol": "udp", "outcome": "refused"}
    ran = CommandResult(
        code=0, isolation="captive", connections=[passed | {"sent": 1200, "received": 7}, refused, quic]
    )
    assert [*isolation_lines(ran, is_replay=False)] == [
        "passed unrecorded: db:5432 2 times (1,200 bytes out, 7 in)",
        "refused: 127.0.0.1:6379 2 times",
    ]
    assert [*isolation_lines(ran, is_replay=True, reported=["127.0.0.1:6379"])] == [
        "to let it reach these services of this machine: --allow-local 127.0.0.1:6379"
    ]
