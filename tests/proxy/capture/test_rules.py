"""The packet rules as text, and the options of the command line."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.capture.rules import Rules, available_format, iptables_text, nft_text, user_id
from proxy.cli.rules import rules
from proxy.errors import Failure

ALL = Rules(port=9000, ports=(80, 443, 8443), excluded_users=(1000, 1001), users=(33,), interfaces=("docker0",))


def test_own_connections_are_left_out_before_anything_is_redirected() -> None:
    text = nft_text(Rules(excluded_users=(1000,)))
    assert text.index("meta skuid { 1000 } return") < text.index("redirect to :8082")
    lines = iptables_text(Rules(excluded_users=(1000,))).splitlines()
    left_out = lines.index("-A PLAYHEAD -m owner --uid-owner 1000 -j RETURN")
    assert left_out < next(number for number, line in enumerate(lines) if "REDIRECT" in line)


def test_more_ports_than_one_rule_takes_are_in_several() -> None:
    text = iptables_text(Rules(ports=tuple(range(1, 41)), excluded_users=(0,)))
    assert text.count("multiport") == 3


@pytest.mark.parametrize("program", ["nft", "iptables-restore"])
@pytest.mark.parametrize("made", [Rules(excluded_users=(0,)), ALL], ids=["least", "all"])
def test_the_program_takes_them(program: str, made: Rules) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    unshare = ["unshare", "--user", "--map-root-user", "--net"]
    if (tried := subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)).returncode:
        pytest.skip(f"no network namespace here: {tried.stderr.strip()}")
    command, text = (
        (["nft", "--check", "-f", "-"], nft_text(made))
        if program == "nft"
        else ([program, "--test", "--noflush"], iptables_text(made))
    )
    if program == "nft":
        listed = subprocess.run([*unshare, "nft", "list", "ruleset"], capture_output=True, text=True, check=False)
        if listed.returncode:
            pytest.skip(f"no nf_tables in a namespace here: {listed.stderr.strip()}")
    # Names of users and interfaces need not exist; 1000 has no user in this namespace, and nft accepts it.
    done = subprocess.run([*unshare, *command], input=text, capture_output=True, text=True, check=False)
    if "--uid-owner" in done.stderr or "Bad value" in done.stderr:
        pytest.skip(f"users of other namespaces are not known here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def test_the_user_of_the_running_up_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "up.json").write_text("{}")
    shown = CliRunner().invoke(rules, ["print", "--data", str(tmp_path), "--format", "nft", "--ports", "443"])
    assert shown.exit_code == 0, shown.output
    assert f"meta skuid {{ {os.geteuid()} }} return" in shown.output
    assert "tcp dport { 443 } redirect" in shown.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--ports", "80,x"], "not a list of ports"),
        (["--ports", "70000"], "not a list of ports"),
        (["--user", "no such user"], "there is no user"),
        (["--interface", "a b; reboot"], "cannot name a network interface"),
    ],
)
def test_a_wrong_choice_is_refused_with_a_sentence(options: list[str], words: str) -> None:
    outcome = CliRunner().invoke(rules, ["print", *options])
    assert isinstance(outcome.exception, Failure)
    assert words in str(outcome.exception)


@pytest.mark.parametrize("verb", ["apply", "remove"])
def test_only_root_may_change_rules(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    outcome = CliRunner().invoke(rules, [verb, *(["--format", "nft"] if verb == "apply" else [])])
    assert isinstance(outcome.exception, Failure)
    assert "only root may" in str(outcome.exception)


def test_a_dry_run_changes_nothing_and_needs_no_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a program was run"))
    outcome = CliRunner().invoke(rules, ["apply", "--dry-run", "--format", "iptables"])
    assert outcome.exit_code == 0
    assert "-A OUTPUT -p tcp -j PLAYHEAD" in outcome.output


def test_a_machine_without_either_program_gets_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(Failure, match="install nftables"):
        available_format()


def test_users_by_name_and_number() -> None:
    assert user_id("0") == user_id("root") == 0
