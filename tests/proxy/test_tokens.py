"""One `up` with commands beside it: what a recorded command is given, and what can be done with it."""

import json
import sys
from pathlib import Path

import httpx2
import pytest

from tests.proxy.test_cli import Desk
from tests.support.service import running
from tests.support.wire import answering

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
URL = "http://tools.example/x"
CODE = f"import json, os, urllib.request as u; u.urlopen('{URL}'); print(json.dumps(dict(os.environ)))"
PROGRAM = (sys.executable, "-c", CODE)


async def status(proxy: str, run: str, token: str) -> int:
    """What is answered to somebody who names this run."""
    address = proxy.replace("://", f"://{run}:{token}@")
    async with httpx2.AsyncClient(proxy=address, trust_env=False, verify=False, timeout=30) as client:
        return (await client.get(URL)).status_code


@pytest.mark.slow
async def test_a_recorded_command_can_record_its_run_and_nothing_else(
    data: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(data=data)
    given = {
        "PLAYHEAD_API_TOKEN": "of-the-api",
        "PLAYHEAD_TOKEN": "of-the-proxy",
        "PLAYHEAD_DATABASE_URL": database_url,
    }
    async with answering(OK) as upstream:
        config = f'[upstreams]\n"tools.example" = "http://127.0.0.1:{upstream.port}"\n'
        async with running(data, "--database-url", database_url, config=config) as service:
            with monkeypatch.context() as around:
                for name, value in given.items():
                    around.setenv(name, value)
                done = {
                    isolation: await desk(
                        "record", "--run", f"mine-{isolation}", "--isolation", isolation, "--", *PROGRAM
                    )
                    for isolation in ("auto", "off")
                }
            assert [one.code for one in done.values()] == [0, 0], done
            recording, api = [(await desk("token", *flag)).out.strip() for flag in (["--recording"], [])]
            secrets = {*given.values(), recording, api}
            environments: list[dict[str, str]] = [json.loads(one.out) for one in done.values()]
            environments.append(json.loads((await desk("env", "--json", "--run", "mine-off")).out))
            for seen in environments:
                assert not [name for name, value in seen.items() if any(secret in value for secret in secrets)]
                assert seen["PLAYHEAD_API_TOKEN_FILE"] == str(data / "keys" / "api.token")
            own = httpx2.URL(environments[1]["PLAYHEAD_PROXY"]).password
            assert own == httpx2.URL(environments[2]["PLAYHEAD_PROXY"]).password

            async with httpx2.AsyncClient(
                base_url=f"{service.api}/v1", trust_env=False, verify=False, timeout=30
            ) as client:
                for token in (own, recording, "x"):
                    refused = await client.delete("/runs/mine-off", headers={"authorization": f"Bearer {token}"})
                    assert refused.status_code == 401
                assert len(upstream.heads) == 2
                for token in ("x", recording):
                    assert [await status(service.proxy, run, token) for run in ("mine-auto", "mine-off")] == [403, 403]
                assert len(upstream.heads) == 2
                assert [await status(service.proxy, run, own) for run in ("mine-off", "free")] == [200, 200]
                answer = await client.get("/runs/mine-off/calls?settled=true", headers=service.headers)
                assert len(answer.json()["items"]) == 2
                assert (await client.delete("/runs/mine-off", headers=service.headers)).status_code == 200
            assert await status(service.proxy, "mine-off", "x") == 200
