"""A recording's name and labels in a command."""

import pytest

from proxy.errors import Failure
from proxy.trials.filled_command import fill_command, has_placeholders

RUN = {"id": "night-7", "labels": {"ticket": "904", "words": "{run} {label.ticket} $(x)", "git.branch": "main"}}


def test_names_and_labels_are_filled_in_once_and_other_braces_stay() -> None:
    command = [
        "python",
        "{run}",
        "--t={label.ticket}",
        "{label.words}",
        "{label.git.branch}",
        "{}",
        '{"run": 1}',
        "{x}",
    ]
    assert has_placeholders(command)
    assert fill_command(command, "last", RUN) == (
        *("python", "night-7", "--t=904", "{run} {label.ticket} $(x)", "main", "{}", '{"run": 1}', "{x}"),
    )
    assert not has_placeholders(["python", "{}", "{x}", "{label.}"])


@pytest.mark.parametrize(
    ("labels", "known"), [({"b": "1", "a": "2"}, "it has a, b"), ({}, "it has none"), (None, "it has none")]
)
def test_a_label_that_there_is_not_is_named(labels: dict[str, str] | None, known: str) -> None:
    with pytest.raises(Failure, match=rf"^last has no label 'ticket', which the command names as .*; {known}$"):
        fill_command(["{label.ticket}"], "last", {"id": "x", "labels": labels})
