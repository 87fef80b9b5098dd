"""Refuse requests to write into a run that another command has claimed."""

from calls.project_runs import split_run_name
from proxy.wire.access import Access, Credentials
from proxy.wire.problem import Problem


def require_write_access(run: str, credentials: Credentials, access: Access) -> None:
    """Raise Problem if the run is claimed by a command and the client does not have its token."""
    if not access.can_write(run, credentials):
        _, run = split_run_name(access.only_run or run)
        raise Problem(
            403,
            "run_claimed",
            f"run {run} belongs to the command that was started for it, and this request does not carry the run's token:"
            " it was neither forwarded nor recorded; name another run, or use the token that `playhead token --run"
            f" {run}` prints as the password in the proxy's URL (shared_runs = true lets every client write into every run)",
        )
