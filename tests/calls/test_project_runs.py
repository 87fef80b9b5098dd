"""Full names of runs."""

from hypothesis import given
from hypothesis import strategies as st

from calls.project_runs import DEFAULT_PROJECT, PROJECT_NAME, RUN_ID, full_run_name, split_run_name

PROJECTS = st.from_regex(PROJECT_NAME, fullmatch=True)
RUNS = st.from_regex(RUN_ID, fullmatch=True)


@given(PROJECTS, RUNS, PROJECTS, RUNS)
def test_a_full_name_names_one_run_of_one_project(project: str, run: str, other: str, other_run: str) -> None:
    assert split_run_name(full_run_name(project, run)) == (project, run)
    assert (full_run_name(project, run) == full_run_name(other, other_run)) == ((project, run) == (other, other_run))


@given(RUNS)
def test_no_id_of_a_run_names_a_project(run: str) -> None:
    assert split_run_name(run) == (DEFAULT_PROJECT, run)
