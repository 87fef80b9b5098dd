"""Refuse requests to write into a run that belongs to a command of its own."""

from proxy.recording.run_identity import Credentials
from proxy.wire.access import Access
from proxy.wire.problem import Problem


def require_write_access(run: str, given: Credentials, access: Access) -> None:
    """Raise Problem where the run belongs to a command, and the client has not its token."""
    if not access.may_write(run, given):
        run = access.only_run or run
        raise Problem(
            403,
            "run_claimed",
            f"run {run} belongs to the command that was started for it, and this request came without the run's token:"
            " nothing of it was sent or recorded; name another run, or use the token that `playhead token --run"
            f" {run}` prints as the password in the proxy's URL (shared_runs = true lets every client write into every run)",
        )
