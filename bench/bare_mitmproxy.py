"""The engine `mitmproxy-bare` of `bench.engines`: an embedded mitmproxy that records nothing.

`python -m bench.bare_mitmproxy` reads its configuration as one line of JSON from stdin, writes its port and CA to
stdout as JSON, and serves until stdin is closed. It has only the addons that a proxy needs, and one that streams every
body.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mitmproxy import options
from mitmproxy.addons import errorcheck, next_layer, proxyserver, tlsconfig
from mitmproxy.http import HTTPFlow
from mitmproxy.master import Master
from mitmproxy.proxy.server_hooks import ServerConnectionHookData


class PassthroughAddon:
    """An addon that streams every body, and contacts the benchmark's upstream in place of every host."""

    def __init__(self, upstream: int, upstreams: Mapping[str, int], ready: Callable[[], None]) -> None:
        self._upstream = upstream
        self._upstreams = upstreams
        self._ready = ready

    def running(self) -> None:
        self._ready()

    def requestheaders(self, flow: HTTPFlow) -> None:
        flow.request.stream = True

    def responseheaders(self, flow: HTTPFlow) -> None:
        assert flow.response is not None
        flow.response.stream = True

    def server_connect(self, data: ServerConnectionHookData) -> None:
        host, _ = data.server.address or ("", 0)
        data.server.address = ("127.0.0.1", self._upstreams.get(host, self._upstream))


async def main() -> None:
    """Serve until stdin is closed."""
    stdin = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    config: dict[str, Any] = json.loads(await stdin.readline())
    master = _master(config)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(master.run())
        await stdin.read()
        master.shutdown()  # type: ignore[no-untyped-call]  # mitmproxy types its data, not its master
        await running


def _master(config: Mapping[str, Any]) -> Master:
    directory = Path(config["directory"])
    master = Master(options.Options(confdir=str(directory), listen_host="127.0.0.1", listen_port=0))
    server = proxyserver.Proxyserver()  # type: ignore[no-untyped-call]
    ca = str(directory / "mitmproxy-ca-cert.pem")
    ready = {"ready": True, "ca": ca}
    announce = lambda: _print_json(ready | {"port": server.listen_addrs()[0][1]})  # noqa: E731
    passthrough = PassthroughAddon(config["upstream"], config["upstreams"], announce)
    addons = [server, next_layer.NextLayer(), tlsconfig.TlsConfig(), errorcheck.ErrorCheck(), passthrough]
    master.addons.add(*addons)  # type: ignore[no-untyped-call]
    master.options.update(ssl_verify_upstream_trusted_ca=config["upstream_ca"])  # type: ignore[no-untyped-call]
    return master


def _print_json(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main())
