"""Copies of the directories from which browsers read policies, with one by which they trust Playhead's CA.

Such a browser has roots of its own: it reads neither the system's CA files nor a variable. Chromium and its relatives add
the certificates of the policy `CACertificates` to them; `chrome-headless-shell` does not know that policy. Firefox adds the
files that its policy `Certificates` names.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from proxy.capture.namespace.trust_files import AuthorityFiles, copy_with_changes

POLICY_DIRECTORIES: Final = (
    ("/etc/chromium", "policies/managed"),
    ("/etc/chromium-browser", "policies/managed"),
    ("/etc/opt/chrome", "policies/managed"),
    ("/etc/opt/chrome_for_testing", "policies/managed"),
    ("/etc/opt/edge", "policies/managed"),
    ("/etc/brave", "policies/managed"),
)
"""Where browsers look for policies, divided after the part that belongs to the browser."""

FIREFOX_DIRECTORIES: Final = (
    "/etc/firefox/policies",
    "/usr/lib/firefox-esr/distribution",
    "/usr/lib/firefox/distribution",
    "/usr/lib64/firefox/distribution",
    "/opt/firefox/distribution",
)
"""Where Firefox looks for its policies. If the first one has some, no other counts."""

MAX_ENTRIES: Final = 500
"""The maximum number of files and directories that are copied. A browser with more does not get the policy."""

_POLICY: Final = "CACertificates"
_FIREFOX_FILE: Final = "policies.json"
_FIREFOX_CERTIFICATE: Final = "playhead-ca.pem"


def policy_binds(authority: AuthorityFiles) -> list[tuple[str, str]]:
    """Return the bind mounts as (copy, target). Where no directory exists to mount on, a browser does not get the policy."""
    authority.copies.mkdir(mode=0o755, exist_ok=True)
    policies_of: dict[Path, list[Path]] = {}
    for home, policies in POLICY_DIRECTORIES:
        directory = Path(home, policies)
        if (target := _mount_target(Path(home), directory)) is not None:
            policies_of.setdefault(target, []).append(directory.relative_to(target))
    copies = {
        target: _copy_directory(
            target, [str(one) for one in places], authority, partial(_add_policies, places, authority)
        )
        for target, places in policies_of.items()
    }
    for target in {Path(os.path.realpath(one)) for one in FIREFOX_DIRECTORIES if os.path.isdir(one)}:
        change = partial(_add_firefox_policy, target, authority)
        copies[target] = _copy_directory(target, [_FIREFOX_FILE], authority, change)
    return [(str(copy), os.path.realpath(target)) for target, copy in copies.items() if copy is not None]


def _mount_target(home: Path, directory: Path) -> Path | None:
    """Return the nearest existing directory. Outside the browser's own it has to be empty, so that nothing else is copied."""
    nearest = next(place for place in (directory, *directory.parents) if place.is_dir())
    try:
        return nearest if nearest.is_relative_to(home) or not os.listdir(nearest) else None
    except OSError:
        return None


def _copy_directory(
    target: Path, policies: Sequence[str], authority: AuthorityFiles, change: Callable[[Path], None]
) -> Path | None:
    """Copy a directory and add the policies. None if that is not possible."""
    try:
        entries = list(_stats(target))
    except OSError:
        return None  # it changes at the moment
    if len(entries) > MAX_ENTRIES:
        return None
    made_of = (str(target), policies, entries, authority.certificate.stat().st_mtime_ns)
    copy = authority.copies / f"policies-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:20]}"
    return copy_with_changes(target, copy, change)


def _add_policies(policies: Sequence[Path], authority: AuthorityFiles, part: Path) -> None:
    for policy in policies:
        managed = part / policy
        # A symbolic link may lead to the original.
        if managed.resolve().is_relative_to(part.resolve()):
            managed.mkdir(parents=True, exist_ok=True)
            _add_policy(managed, authority)


def _stats(target: Path) -> Iterator[tuple[str, int, int]]:
    """Yield path, time of change and size of what the directory has, one more than is copied at most."""
    count = 0
    for place, directories, files in os.walk(target):
        directories.sort()
        for name in (*directories, *sorted(files)):
            path = os.path.join(place, name)
            found = os.lstat(path)
            yield path, found.st_mtime_ns, found.st_size
            count += 1
            if count > MAX_ENTRIES:
                return


def _add_policy(managed: Path, authority: AuthorityFiles) -> None:
    """Add the CA to each file that sets the policy, because only one of several files counts; else write one that sets it."""
    certificate = _certificate_text(authority)
    is_set = False
    for path in sorted(managed.glob("*.json")):
        policies = _read_policies(path)
        if isinstance(policies.get(_POLICY), list):
            path.write_text(json.dumps({**policies, _POLICY: [*policies[_POLICY], certificate]}))
            is_set = True
    if not is_set:
        (managed / "playhead.json").write_text(json.dumps({_POLICY: [certificate]}))


def _add_firefox_policy(target: Path, authority: AuthorityFiles, part: Path) -> None:
    """Add the CA beside the policies, and its path as it will be to those that are there.

    A file that cannot be read or is a link stays as it is: its other policies may protect more than the CA is worth.
    """
    path = part / _FIREFOX_FILE
    is_new = not path.is_symlink() and not path.exists()
    settings = {} if is_new else _read_policies(path)
    if not settings and not is_new:
        return
    policies = settings.get("policies", {})
    certificates = policies.get("Certificates", {})
    installed = [*certificates.get("Install", []), str(target / _FIREFOX_CERTIFICATE)]
    added = {**policies, "Certificates": {**certificates, "Install": installed}}
    (part / _FIREFOX_CERTIFICATE).write_bytes(authority.certificate.read_bytes())
    path.write_text(json.dumps({**settings, "policies": added}))


def _read_policies(path: Path) -> dict[str, Any]:
    """Read a file of policies; empty if it is not one, or is a link, whose file is not a copy."""
    if path.is_symlink():
        return {}
    try:
        policies = json.loads(path.read_bytes())
    except ValueError:
        return {}
    return policies if isinstance(policies, dict) else {}


def _certificate_text(authority: AuthorityFiles) -> str:
    """Return the CA's certificate in base64, without the lines around it."""
    lines = authority.certificate.read_text().splitlines()
    return "".join(line for line in lines if line and not line.startswith("-----"))
