"""A process that outlives the command which started it, and acts when the test says so."""

import asyncio
import os
import textwrap
from pathlib import Path


class Daemon:
    """Runs Python in a process of its own after the command has ended."""

    def __init__(self, directory: Path, action: str) -> None:
        self._begin, self._end = directory / "begin", directory / "end"
        os.mkfifo(self._begin)
        os.mkfifo(self._end)
        self.script = f"""
import os
if os.fork(): os._exit(0)
os.setsid()
open({str(self._begin)!r}).read()
try:
{textwrap.indent(action, "    ")}
    outcome = "done"
except OSError as error:
    outcome = error.strerror
open({str(self._end)!r}, "w").write(outcome)
"""
        """What the command runs. It ends at once."""

    async def act(self) -> str:
        """Let it act. Returns `done`, or why the system refused it."""
        async with asyncio.timeout(60):
            await asyncio.to_thread(self._begin.write_text, "now")
            return await asyncio.to_thread(self._end.read_text)
