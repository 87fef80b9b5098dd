"""Process 1 of a container reaps the orphans that it gets."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = f"""
import asyncio, os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from proxy.processes.child_process import reap_orphans

async def main():
    assert os.getpid() == 1
    own = await asyncio.create_subprocess_exec("sh", "-c", "(true &) ; (true &) ; exit 7")
    reaping = asyncio.create_task(reap_orphans(0.02))
    assert await own.wait() == 7
    async with asyncio.timeout(30):
        while True:
            try:
                os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                break
            await asyncio.sleep(0.02)
    reaping.cancel()
    print("reaped")

asyncio.run(main())
"""


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only root of Linux makes such a namespace")
def test_process_1_reaps_orphans_and_leaves_its_own_children_to_asyncio() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed here")
    line = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", PROGRAM]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "reaped\n"), done.stderr
