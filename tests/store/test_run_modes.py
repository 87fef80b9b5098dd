"""What the store server notes for workers about a run."""

from pathlib import Path

from store.run_modes import RunModes


def test_a_run_that_is_gone_leaves_nothing_to_the_next_of_its_name(tmp_path: Path) -> None:
    modes = RunModes(tmp_path)
    modes.forget("what-if")
    for run in ("what-if", "web/what-if"):
        modes.set_mode(run, "record")
        modes.mark_exclusive(run)
    modes.forget("what-if")
    assert (modes.mode_of("what-if"), modes.is_exclusive("what-if")) == (None, False)
    assert (modes.mode_of("web/what-if"), modes.is_exclusive("web/what-if")) == ("record", True)
    modes.forget("web/what-if")
    assert list(tmp_path.iterdir()) == []
