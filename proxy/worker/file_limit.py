"""Raise the limit of open files of a process."""

import resource


def raise_file_limit() -> None:
    """Raise the limit of open files to the system's maximum: each client takes one or two, and the default is often 1,024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
