"""Enter a user namespace with the same ids as outside. Standard library only (`proxy/capture/namespace/inside.py`)."""

import os


def enter_namespaces(flags: int) -> None:
    """Enter a user namespace with the same ids as outside, and the other namespaces in `flags`. Raises OSError.

    A user other than root maps only its own ids. Its other groups keep their effect on files, but have no name inside.
    Root maps all ids, so that it has the same rights on files as outside. Only a process outside may write that map.
    """
    if os.geteuid() != 0:
        uid, gid = os.geteuid(), os.getegid()
        os.unshare(flags)
        _write_maps("self", {"setgroups": "deny", "uid_map": f"{uid} {uid} 1", "gid_map": f"{gid} {gid} 1"})
        return
    maps = {name: _identity_map(name) for name in ("uid_map", "gid_map")}
    outside, entered = _start_writer(maps)
    try:
        os.unshare(flags)
    finally:
        os.close(entered)
        _, status = os.waitpid(outside, 0)
    if status:
        code = os.waitstatus_to_exitcode(status)
        raise OSError(code, os.strerror(code), "/proc/self/uid_map")


def _start_writer(maps: dict[str, str]) -> tuple[int, int]:
    """Start a process that writes the maps of this one when the returned descriptor is closed."""
    waits, entered = os.pipe()
    parent = str(os.getpid())
    child = os.fork()
    if child:
        os.close(waits)
        return child, entered
    os.close(entered)
    os.read(waits, 1)
    try:
        _write_maps(parent, maps)
    except OSError as error:
        os._exit(error.errno or 1)
    os._exit(0)


def _identity_map(name: str) -> str:
    """Return a map of every id in this namespace to itself; on a host `0 0 4294967295`."""
    with open(f"/proc/self/{name}") as file:
        extents = [line.split() for line in file]
    return "".join(f"{inside} {inside} {length}\n" for inside, _, length in extents)


def _write_maps(process: str, maps: dict[str, str]) -> None:
    for name, lines in maps.items():
        with open(f"/proc/{process}/{name}", "w") as file:
            file.write(lines)


def loosen_sysctls() -> None:
    """Let a command listen on low ports and send pings like outside, if /proc is writable."""
    settings = {"net/ipv4/ping_group_range": "0 2147483647"}
    if os.geteuid() == 0:
        settings["net/ipv4/ip_unprivileged_port_start"] = "0"
    for name, value in settings.items():
        try:
            with open(f"/proc/sys/{name}", "w") as file:
                file.write(value)
        except OSError:
            continue
