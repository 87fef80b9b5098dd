"""Two network namespaces: one with Playhead, agents and packet rules, the other with a server.

Run as root with: engine, format of the rules, directory. Prints what happened as JSON.
"""

import asyncio
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support import wire

NOBODY = 65534
HERE4, THERE4 = "11.22.33.1", "11.22.33.2"
HERE6, THERE6 = "2600:1::1", "2600:1::2"
TRANSPARENT = 8082
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def other_machine() -> list[socket.socket]:
    """Create the second namespace with a link to it, and return sockets that listen there on 443, 80 and 25, of both families."""
    sockets: list[socket.socket] = []
    is_made, is_connected, is_over = threading.Event(), threading.Event(), threading.Event()
    thread_id = 0

    def there() -> None:
        nonlocal thread_id
        os.unshare(os.CLONE_NEWNET)
        thread_id = threading.get_native_id()
        is_made.set()
        is_connected.wait()
        # A process that this thread starts inherits its namespace.
        ip("addr", "add", f"{THERE4}/24", "dev", "there")
        ip("addr", "add", f"{THERE6}/64", "dev", "there", "nodad")
        ip("link", "set", "there", "up")
        for family, address in ((socket.AF_INET, THERE4), (socket.AF_INET6, THERE6)):
            for port in (443, 80, 25):
                listener = socket.socket(family)
                listener.bind((address, port))
                listener.listen()
                sockets.append(listener)
        is_over.set()

    threading.Thread(target=there, daemon=True).start()
    is_made.wait()
    ip("link", "add", "here", "type", "veth", "peer", "name", "there")
    ip("link", "set", "there", "netns", str(thread_id))
    is_connected.set()
    is_over.wait()
    ip("addr", "add", f"{HERE4}/24", "dev", "here")
    ip("addr", "add", f"{HERE6}/64", "dev", "here", "nodad")
    ip("link", "set", "here", "up")
    return sockets


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            await wire.read_request(reader)
            writer.write(OK)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    finally:
        writer.close()


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 ready\r\n")
    await reader.read()
    writer.close()


async def run_as_user(*command: str, user: int = NOBODY) -> tuple[int, str]:
    """Run a program as another user, and return its result."""
    process = await asyncio.create_subprocess_exec(
        *command,
        user=user,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.environ["PYTHONPATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    async with asyncio.timeout(60):
        output, _ = await process.communicate()
    return process.returncode or 0, output.decode(errors="replace")


async def rules(*words: str) -> tuple[int, str]:
    return await run_as_user(sys.executable, "-c", "from proxy.cli import main; main()", "rules", *words, user=0)


def packet_rules() -> str:
    """Return the rules of both formats that are in force."""
    commands = (["nft", "list", "ruleset"], ["iptables-save", "-t", "nat"])
    installed = [command for command in commands if shutil.which(command[0])]
    return "".join(subprocess.run(one, capture_output=True, text=True, check=True).stdout for one in installed)


def mail(host: str) -> Sequence[str]:
    # Not by Python, because another user may not be able to read this interpreter.
    return ("bash", "-c", f"exec 3<>/dev/tcp/{host}/25 && timeout 10 head -1 <&3")


async def main(engine: str, text_format: str, directory: Path) -> dict[str, Any]:
    os.unshare(os.CLONE_NEWNET)
    ip("link", "set", "lo", "up")
    sockets = other_machine()
    wire.engine = engine
    recorder = wire.MemoryRecorder()
    os.chmod(directory, 0o755)
    tls = wire.upstream_tls("api.test", THERE4)
    handlers: list[tuple[Any, ssl.SSLContext | None]] = [(answer, tls), (answer, None), (greet, None)]
    for listener, (handler, context) in zip(sockets, handlers * 2, strict=True):
        await asyncio.start_server(handler, sock=listener, ssl=context)
    found: dict[str, Any] = {}
    ports = {"connect_ports": (80, 443, 25), "transparent": TRANSPARENT}
    async with wire.open_worker(directory, recorder, finds_owners=True, **ports) as worker:
        ca = directory / "ca.pem"
        ca.write_bytes(worker.config.authority.certificate.read_bytes())
        trust = ("curl", "-sS", "-m", "10", "--cacert", str(ca), "-w", "%{http_code}", "-o", "/dev/null")
        named = (*trust, "--resolve", f"api.test:443:{THERE4}", "--resolve", f"api.test:80:{THERE4}")
        named6 = (*trust, "--resolve", f"api.test:443:[{THERE6}]")
        choices = ("--ports", "80,443,25", "--format", text_format)
        if shutil.which("nft") and shutil.which("iptables"):
            await rules("apply", "--ports", "12121", "--format", "iptables" if text_format == "nft" else "nft")
        found["apply"] = await rules("apply", *choices)
        found["in_force"] = packet_rules()
        found["again"] = await rules("apply", *choices)
        found["tls"] = await run_as_user(*named, "https://api.test/tls")
        found["tls6"] = await run_as_user(*named6, "https://api.test/tls6")
        found["plain"] = await run_as_user(*named, "http://api.test/plain")
        found["literal"] = await run_as_user(*trust, f"https://{THERE4}/literal")
        found["mail"] = await run_as_user(*mail(THERE4))
        found["mail6"] = await run_as_user(*mail(THERE6))
        found["excluded"] = await run_as_user(*named, "https://api.test/own", user=0)
        found["direct"] = await run_as_user("curl", "-sS", "-m", "5", f"http://127.0.0.1:{TRANSPARENT}/")
        # Rules that do not exclude this user send the worker's own connections back to it.
        (directory / "up.json").write_text("{}")
        os.chown(directory / "up.json", 12345, 12345)
        found["loop_apply"] = await rules("apply", *choices, "--data", str(directory))
        found["loop"] = await run_as_user(*trust, f"http://[{THERE6}]/loop")
        found["loop_mail"] = await run_as_user(*mail(THERE4))
        found["remove"] = await rules("remove")
        found["remove_again"] = await rules("remove")
        found["after"] = await run_as_user(*trust, "-k", *named[len(trust) :], "https://api.test/after")
        found["urls"] = [exchange.begun["url"] for exchange in recorder.exchanges]
        found["owners"] = [
            (exchange.begun["run"], dict(exchange.begun["run_evidence"])) for exchange in recorder.exchanges
        ]
        found["outcomes"] = [exchange.outcome for exchange in recorder.exchanges]
        found["gaps"] = [reason for _, reason, _ in recorder.gaps]
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))), indent=1))
