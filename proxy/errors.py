"""The exception that ends a command with a message for its user."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

FAILURE_EXIT_CODE: Final = 125
"""The exit code of Playhead's own failures. A wrapped command keeps its exit codes."""


class Failure(Exception):
    """A message that says what happened, why, and what to do. The command line prints it and exits with 125."""


def first_exception(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first exception of a group, which may be nested."""
    inner = group.exceptions[0]
    return first_exception(inner) if isinstance(inner, BaseExceptionGroup) else inner


def unwritable_file(path: Path, error: OSError, advice: str = "name another file", *, what: str = "") -> Failure:
    """Return the Failure that says why a user's file cannot be written. `what` it is, such as "the report"."""
    name = f"{what} {path}" if what else str(path)
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return Failure(f"cannot write {name}: there is no directory {path.parent}; create it, or {advice}")
    return Failure(f"cannot write {name}: {error.strerror}; {advice}")


@contextmanager
def explain_file_errors(path: Path, what: str, advice: str, *refusals: type[ValueError]) -> Iterator[None]:
    """Turn what goes wrong while a user's file is read as text into a Failure.

    `what` the file should be, such as "rubric", `advice` for a file that cannot be read, and the errors that say why its content is refused.
    """
    try:
        yield
    except OSError as error:
        raise Failure(f"cannot read the {what} {path}: {error.strerror}; {advice}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is not text in UTF-8, so no {what} can be read from it: save it as UTF-8") from error
    except refusals as error:
        raise Failure(f"{path}: {error}") from error


NO_TEMPORARY_DIRECTORY: Final = "no directory for temporary files can be written: make /tmp writable (a tmpfs, where the root is read-only), or set TMPDIR"
"""Why a command ends that needs one."""


def is_temporary_directory_missing(error: BaseException) -> bool:
    """Whether Python's `tempfile` found no directory that can be written."""
    return isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error)


PROCESS_LIMIT: Final = (
    "the limit of processes and threads is reached: raise it (ulimit -u, or pids.max of a container), or end others"
)
"""Why a command ends that can start neither."""


def is_process_limit(error: BaseException | str) -> bool:
    """Whether no thread or process could be started, because there are as many as there may be."""
    if isinstance(error, OSError):
        # Where that attribute is set, it was a write to an output that does not block.
        return error.errno == errno.EAGAIN and not hasattr(error, "characters_written")
    return "can't start new thread" in str(error)
