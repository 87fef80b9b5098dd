"""Name runs across projects.

Within its project, a run has its id. Where runs of several projects meet (in a worker, a spool or the data directory), a run
of another project than `default` is named `PROJECT/RUN`, its full name. No id contains a slash, so no client can choose a
project by the id of its run.
"""

import re
from typing import Final

DEFAULT_PROJECT: Final = "default"
"""The project of everything that is recorded without a token or setting for another."""

PROJECT_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""A valid name of a project: it can be part of a path, of a run's full name, and of an environment variable's value."""

RUN_ID: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._:-]{1,128}")
"""A valid run id: `.` and `..` are excluded because a URL's path cannot name them."""


def full_run_name(project: str, run: str) -> str:
    """Return the full name of a run: `run` itself in the default project."""
    return run if project == DEFAULT_PROJECT else f"{project}/{run}"


def split_run_name(name: str) -> tuple[str, str]:
    """Return the project and the id of a run by its full name."""
    project, slash, run = name.partition("/")
    return (project, run) if slash else (DEFAULT_PROJECT, name)
