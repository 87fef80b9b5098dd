"""The limits of a process that handles what is not redacted yet, or keeps the keys: of open files, and of core files."""

import resource


def raise_file_limit() -> None:
    """Raise the limit of open files to the system's maximum: each client takes one or two, and the default is often 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def forbid_core_files() -> None:
    """Let the system write no core file if this process crashes: its memory has what is never written to a disk."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))
