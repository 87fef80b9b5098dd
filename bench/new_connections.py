"""What a new proxy connection costs a worker, with credentials and without: `python -m bench.new_connections`.

One process asks once on each of many connections, a few at a time, as agents and their tools do. The origin runs in the
worker's process too. Figures are per connection, of that whole process.
"""

import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.support import wire
from tests.support.wire import MemoryRecorder, answering, open_worker

COUNT: Final = 2000
AT_A_TIME: Final = 16
CLIENT: Final = """
import asyncio, sys
port, count, width, field = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
head = f"GET http://tools.example/x HTTP/1.1\\r\\nHost: tools.example\\r\\nConnection: close\\r\\n{field}\\r\\n".encode()
async def some():
    for _ in range(count // width):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert (await reader.read()).startswith(b"HTTP/1.1 200")
        writer.close()
async def main():
    await asyncio.gather(*(some() for _ in range(width)))
asyncio.run(main())
"""
CREDENTIALS: Final = "Proxy-Authorization: Basic cnVuLTE6\r\n"


def cpu() -> float:
    """Seconds that this process has computed."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(port: int, field: str, count: int = COUNT) -> str:
    """Figures of one load."""
    arguments = (str(port), str(count), str(AT_A_TIME), field)
    began, used = time.perf_counter(), cpu()
    client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, *arguments)
    assert await client.wait() == 0
    wall = time.perf_counter() - began
    return f"{count / wall:6.0f} connections a second, {(cpu() - used) / count * 1e3:.3f} ms of CPU each"


async def main() -> None:
    """Measure both, twice in turns."""
    wire.engine = "lane"
    with tempfile.TemporaryDirectory() as directory:
        async with (
            answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") as origin,
            open_worker(
                Path(directory),
                MemoryRecorder(),
                upstreams={"tools.example": f"http://127.0.0.1:{origin.port}"},
            ) as worker,
        ):
            await measure(worker.port, CREDENTIALS, 160)
            for _ in range(2):
                print("with credentials   ", await measure(worker.port, CREDENTIALS))
                print("without credentials", await measure(worker.port, ""))


if __name__ == "__main__":
    asyncio.run(main())
