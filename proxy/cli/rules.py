"""The commands that redirect programs which Playhead did not start: rules print, apply, remove."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from proxy.capture import rules as packet_rules
from proxy.capture.rules import PORTS, TRANSPARENT_PORT, Format, Rules
from proxy.cli.common import settings_from_flags, with_settings
from proxy.errors import Failure
from proxy.settings import Settings


@click.group("rules", short_help="Redirect other programs' connections to `up --transparent`.")
def rules() -> None:
    """Redirect connections to `playhead up --transparent`, also those of programs that ignore proxy variables.

    \b
        playhead up --transparent            # for example as the user playhead
        playhead rules print                 # shows the rules
        sudo playhead rules apply --data DIR # the data directory of that `up`
        sudo playhead rules remove

    Then connections of all other users to ports 80 and 443 go through Playhead, over IPv4 and IPv6. The user that runs Playhead is
    left out, since its own connections to upstreams would come back to it: run agents as another user. They have to trust
    Playhead's CA (playhead ca).
    """


def _with_rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = [
        click.option(
            "--transparent",
            "port",
            type=click.IntRange(1, 65535),
            metavar="PORT",
            help=f"The port that `up --transparent` was given. Default: {TRANSPARENT_PORT}.",
        ),
        click.option(
            "--ports", metavar="PORT,…", help=f"Destination ports to redirect. Default: {','.join(map(str, PORTS))}."
        ),
        click.option(
            "--leave-out",
            multiple=True,
            metavar="USER",
            help="Do not redirect this user, nor the user of `up`. May be repeated.",
        ),
        click.option("--user", multiple=True, metavar="USER", help="Redirect only this user. May be repeated."),
        click.option(
            "--interface",
            multiple=True,
            metavar="NAME",
            help="Also redirect what arrives at this interface, such as docker0; `up` must then --listen beyond loopback. May be repeated.",
        ),
        click.option(
            "--format",
            "text_format",
            type=click.Choice(["nft", "iptables"]),
            help="Default: nft where it is installed, else iptables.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return with_settings(command)


@rules.command("print")
@_with_rule_options
def print_rules(text_format: Format | None, **choices: Any) -> None:
    """Print the rules, for `nft -f` or `iptables-restore --noflush`."""
    packet_filter = _build_rules(**choices)
    click.echo(_rules_text(packet_filter, text_format or _likely_format()), nl=False)


@rules.command("apply")
@_with_rule_options
@click.option("--dry-run", is_flag=True, help="Print the rules without applying them.")
def apply_rules(text_format: Format | None, dry_run: bool, **choices: Any) -> None:
    """Apply the rules, replacing earlier ones. Needs root."""
    packet_filter = _build_rules(**choices)
    if dry_run:
        click.echo(_rules_text(packet_filter, text_format or _likely_format()), nl=False)
        return
    packet_rules.apply_rules(packet_filter, text_format or packet_rules.available_format())
    click.echo(
        f"playhead: TCP to port {', '.join(map(str, packet_filter.ports))} is redirected to port {packet_filter.port}, except that of user"
        f" {', '.join(map(str, packet_filter.excluded_users))}; undo it with: playhead rules remove",
        err=True,
    )


@rules.command("remove")
@with_settings
def remove_rules(**_flags: Any) -> None:
    """Remove the rules. Needs root. Does nothing if there are none."""
    had_any = packet_rules.remove_rules()
    click.echo("playhead: the rules are removed" if had_any else "playhead: there were no rules", err=True)


def _likely_format() -> Format:
    try:
        return packet_rules.available_format()
    except Failure:
        return "nft"


def _rules_text(packet_filter: Rules, text_format: Format) -> str:
    return packet_rules.nft_text(packet_filter) if text_format == "nft" else packet_rules.iptables_text(packet_filter)


def _build_rules(
    port: int | None,
    ports: str | None,
    leave_out: tuple[str, ...],
    user: tuple[str, ...],
    interface: tuple[str, ...],
    **flags: Any,
) -> Rules:
    own = settings_from_flags(**flags)
    left_out = dict.fromkeys([_user_of_up(own), *map(packet_rules.user_id, leave_out)])
    return Rules(
        port=port or own.transparent or TRANSPARENT_PORT,
        ports=_parse_ports(ports) if ports else PORTS,
        excluded_users=tuple(left_out),
        users=tuple(map(packet_rules.user_id, user)),
        interfaces=tuple(map(_check_interface, interface)),
    )


def _user_of_up(own: Settings) -> int:
    """Return the user of the running `up`, otherwise the user of this command, also behind sudo."""
    note = Path(own.data) / "up.json"
    if note.exists():
        return note.stat().st_uid
    return int(os.environ.get("SUDO_UID", os.geteuid()))


def _parse_ports(text: str) -> tuple[int, ...]:
    words = text.replace(",", " ").split()
    if not words or not all(word.isascii() and word.isdigit() and 0 < int(word) < 65536 for word in words):
        raise Failure(f"--ports {text!r} is not a list of ports: write it like 80,443")
    return tuple(dict.fromkeys(int(word) for word in words))


def _check_interface(name: str) -> str:
    if not 0 < len(name) < 16 or not all(letter.isalnum() or letter in "._-@+" for letter in name):
        raise Failure(f"--interface {name!r} cannot name a network interface: choose one that `ip link` lists")
    return name


COMMANDS = (rules,)
