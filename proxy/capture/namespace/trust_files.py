"""Copies of the files from which programs read certificate authorities, with Playhead's CA added.

They are bind-mounted over the system's files for a captive command, so that programs which read no variable also trust
the CA. Copies are kept beside the CA, and created again when their sources change.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

SYSTEM_FILES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Gentoo, Arch; Go, curl, GnuTLS
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Red Hat, Fedora
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/pki/tls/cert.pem",
    "/etc/pki/tls/cacert.pem",  # OpenELEC
    "/etc/ssl/ca-bundle.pem",  # openSUSE
    "/var/lib/ca-certificates/ca-bundle.pem",
    "/etc/ssl/cert.pem",  # Alpine
    "/etc/ssl/certs/ca-bundle.crt",  # NixOS
    "/etc/ca-certificates/extracted/tls-ca-bundle.pem",  # Arch
    "/usr/lib/ssl/cert.pem",
    "/usr/local/ssl/cert.pem",
    "/home/linuxbrew/.linuxbrew/etc/ca-certificates/cert.pem",
)

SYSTEM_DIRECTORIES: Final = (
    "/etc/ssl/certs",  # OpenSSL's own on Debian, Alpine, Arch and openSUSE
    "/etc/pki/tls/certs",
    "/usr/local/ssl/certs",
)

JAVA_STORES: Final = (
    "/etc/ssl/certs/java/cacerts",
    "/etc/pki/java/cacerts",
    "/etc/pki/ca-trust/extracted/java/cacerts",
)

PACKAGE_FILES: Final = (
    "certifi/cacert.pem",
    "pip/_vendor/certifi/cacert.pem",
    "botocore/cacert.pem",
    "grpc/_cython/_credentials/roots.pem",
    "httplib2/cacerts.txt",
)
"""Files that Python packages contain and read in place of the system's."""

MAX_ENTRIES: Final = 3000
"""The maximum number of entries of a directory that is copied. For larger ones programs have the variables."""

_HASH_NAME: Final = re.compile(r"[0-9a-f]{8}\.\d+")


class AuthorityFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of Playhead's CA."""

    certificate: Path
    java: Path | None
    """The whole bundle as a Java truststore."""

    @property
    def copies(self) -> Path:
        return self.certificate.with_name("system")


def trust_binds(
    authority: AuthorityFiles, command: Sequence[str], environment: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the bind mounts as (copy, target). Files that cannot be read are left out."""
    authority.copies.mkdir(mode=0o755, exist_ok=True)
    directories = [path for path in _real_paths(SYSTEM_DIRECTORIES) if os.path.isdir(path)]
    binds = [(str(copy), path) for path in directories if (copy := _copy_directory(path, authority))]
    covered = tuple(f"{path}/" for _, path in binds)
    files = [*SYSTEM_FILES, *_package_files(command, environment)]
    targets = [path for path in _real_paths(files) if os.path.isfile(path) and not path.startswith(covered)]
    binds += [(str(copy), path) for path in targets if (copy := _copy_file(path, authority))]
    if authority.java:
        stores = _real_paths([*JAVA_STORES, *_java_homes(environment)])
        binds += [
            (str(authority.java), path) for path in stores if os.path.isfile(path) and not path.startswith(covered)
        ]
    return binds


def _real_paths(paths: Iterable[str]) -> Iterator[str]:
    """Yield each existing path once, with its symbolic links resolved."""
    return iter(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.exists(path)))


def _copy_file(path: str, authority: AuthorityFiles) -> Path | None:
    found = os.stat(path)
    name = _copy_name(path, found.st_mtime_ns, found.st_size, authority)
    copy = authority.copies / f"{name}.pem"
    if not copy.exists():
        try:
            write_copy(copy, _add_authority(Path(path).read_bytes(), authority))
        except OSError:
            return None
    return copy


def _copy_directory(path: str, authority: AuthorityFiles) -> Path | None:
    """Copy a directory in which OpenSSL finds a CA by the hash of its subject; None if it is not one."""
    found = os.stat(path)
    names = os.listdir(path)
    if len(names) > MAX_ENTRIES or not any(map(_HASH_NAME.fullmatch, names)):
        return None
    copy = authority.copies / _copy_name(path, found.st_mtime_ns, len(names), authority)
    return copy_with_changes(path, copy, partial(_add_to_directory, path, authority))


def _add_to_directory(path: str, authority: AuthorityFiles, part: Path) -> None:
    for name in SYSTEM_FILES:
        place = part / os.path.basename(name)
        if os.path.dirname(name) == path and place.is_file() and not place.is_symlink():
            write_copy(place, _add_authority(place.read_bytes(), authority))
    store = part / "java" / "cacerts"
    if store.exists() and authority.java:
        shutil.copyfile(authority.java, store)
    (part / "playhead.pem").write_bytes(authority.certificate.read_bytes())
    # The import is slow, and only needed when a copy is created.
    from proxy.trust.certificate_directory import subject_hash

    hashed = subject_hash(authority.certificate.read_bytes())
    number = next(number for number in range(100) if not (part / f"{hashed}.{number}").is_symlink())
    (part / f"{hashed}.{number}").symlink_to("playhead.pem")


def copy_with_changes(directory: str | Path, copy: Path, change: Callable[[Path], None]) -> Path | None:
    """Copy a directory to `copy` and change it, unless it is there already; None if that is not possible.

    `change` gets the unfinished copy. Another command that copies at the same time sees all of it or nothing.
    """

    def make(part: Path) -> None:
        shutil.copytree(directory, part, symlinks=True)
        change(part)

    return make_copy(copy, make)


def make_copy(copy: Path, make: Callable[[Path], None]) -> Path | None:
    """Make a directory at `copy`, unless it is there already; None if that is not possible. `make` gets an unfinished path."""
    if copy.exists():
        return copy
    part = copy.with_name(f".{copy.name}.{os.getpid()}")
    try:
        make(part)
        part.chmod(0o755)
        part.rename(copy)
    except (OSError, shutil.Error):
        shutil.rmtree(part, ignore_errors=True)
        return copy if copy.exists() else None
    return copy


def _copy_name(path: str, modified_at: int, size: int, authority: AuthorityFiles) -> str:
    parts = (path, modified_at, size, authority.certificate.stat().st_mtime_ns)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def _add_authority(roots: bytes, authority: AuthorityFiles) -> bytes:
    return roots.rstrip(b"\n") + b"\n" + authority.certificate.read_bytes()


def write_copy(path: Path, data: bytes) -> None:
    """Write a file that every user may read. Another command that reads it sees all of it or nothing."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(data)
    part.chmod(0o644)
    part.replace(path)


def _package_files(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[str]:
    for prefix in dict.fromkeys(_python_prefixes(command, environment)):
        for library in (prefix / "lib", prefix / "local" / "lib"):
            for packages in (*library.glob("python3*/site-packages"), *library.glob("python3*/dist-packages")):
                yield from (str(packages / name) for name in PACKAGE_FILES)


def _python_prefixes(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the prefixes of Pythons that the command could use, by its arguments and its environment."""
    path = environment.get("PATH", os.defpath)
    for word in (*command, "python3", "python"):
        program = shutil.which(word, path=path) if len(word) < 4096 and "\0" not in word else None
        if program is None:
            continue
        for place in (Path(program), Path(os.path.realpath(program)), _interpreter(program)):
            if place is not None and place.parent.name == "bin":
                yield place.parent.parent
    yield from (Path(environment[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name))
    yield from (Path(".venv").absolute(), Path("venv").absolute())
    if "HOME" in environment:
        yield Path(environment["HOME"]) / ".local"


def _interpreter(program: str) -> Path | None:
    """Return the program in a script's first line."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].split() if first.startswith(b"#!") else []
    return Path(os.fsdecode(words[0])) if words else None


def _java_homes(environment: Mapping[str, str]) -> Iterator[str]:
    homes = [environment["JAVA_HOME"]] if environment.get("JAVA_HOME") else []
    if java := shutil.which("java", path=environment.get("PATH", os.defpath)):
        homes.append(os.path.dirname(os.path.dirname(os.path.realpath(java))))
    for home in homes:
        yield f"{home}/lib/security/cacerts"
        yield f"{home}/jre/lib/security/cacerts"
