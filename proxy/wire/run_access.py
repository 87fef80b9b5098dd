"""Refuse requests to write into a run that another command has claimed, or with a token that has ended."""

from calls.project_runs import split_run_name
from proxy.wire.access import Access, Credentials
from proxy.wire.problem import Problem


def require_write_access(run: str, credentials: Credentials, access: Access) -> None:
    """Raise Problem if the client's token has ended, or the run is claimed by a command and it does not have the run's token."""
    if access.has_ended_token(credentials):
        raise ended_token_problem(403)
    if not access.can_write(run, credentials):
        _, run = split_run_name(access.only_run or run)
        raise Problem(
            403,
            "run_claimed",
            f"run {run} belongs to the command that was started for it, and this request does not carry the run's token:"
            " it was neither forwarded nor recorded; name another run, or use the token that `playhead token --run"
            f" {run}` prints as the password in the proxy's URL (shared_runs = true lets every client write into every run)",
        )


def ended_token_problem(status: int) -> Problem:
    """Return the answer to a client whose token may not record, or no longer."""
    return Problem(
        status,
        "token_refused",
        "the token in the proxy's URL may not record: it was revoked, has expired, lacks the scope `record`, or is not in this"
        " data directory. The request was neither forwarded nor recorded; `playhead token list` shows the tokens, and"
        " `playhead token create NAME --project P --scope record` creates one",
    )
