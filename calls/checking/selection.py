"""Select the tool calls and calls that a rule is about. In every pattern `*` matches anything and `?` one character."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from calls.checking.checked_run import CheckedRun, CheckedStep, RequestedTool


def fits_any(text: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns matches the whole text."""
    return any(fnmatchcase(text, pattern) for pattern in patterns)


def select_tools(run: CheckedRun, patterns: Sequence[str]) -> list[RequestedTool]:
    """Return the requested tool calls with one of these names, in order."""
    return [tool for tool in run.tools if fits_any(tool.name, patterns)]


def select_steps(
    run: CheckedRun,
    *,
    hosts: Sequence[str] = (),
    methods: Sequence[str] = (),
    paths: Sequence[str] = (),
    models: Sequence[str] = (),
) -> list[CheckedStep]:
    """Return the calls that match every kind of pattern that is given; one pattern of a kind is enough."""
    return [
        step
        for step in run.steps
        if (not hosts or fits_any(step.host.lower(), [pattern.lower() for pattern in hosts]))
        and (not methods or step.method in methods)
        and (not paths or fits_any(step.path, paths))
        and (not models or (step.model is not None and fits_any(step.model, models)))
    ]
