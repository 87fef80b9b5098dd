"""Record the calls of marked tests to model and tool APIs, and replay them with the network cut.

    @pytest.mark.playhead
    def test_the_oldest_ticket_gets_a_note(playhead_run): ...

The work is done by a proxy, `playhead fixtures`, which is started once per pytest process; the workers of xdist share one. It sees every client that obeys
the proxy variables: in the test, in the modules that it imports, and in the programs that it starts.
"""

from pytest_playhead.guard import NetworkBlocked
from pytest_playhead.hooks import (
    playhead_recording,
    playhead_run,
    pytest_addoption,
    pytest_collection_finish,
    pytest_configure,
    pytest_load_initial_conftests,
    pytest_report_header,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_terminal_summary,
    pytest_testnodedown,
    pytest_unconfigure,
    pytest_xdist_setupnodes,
)

__all__ = [
    "NetworkBlocked",
    "playhead_recording",
    "playhead_run",
    "pytest_addoption",
    "pytest_collection_finish",
    "pytest_configure",
    "pytest_load_initial_conftests",
    "pytest_report_header",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "pytest_runtest_teardown",
    "pytest_terminal_summary",
    "pytest_testnodedown",
    "pytest_unconfigure",
    "pytest_xdist_setupnodes",
]
