"""`playhead export --format otlp` writes or sends the spans that the store server makes, and no secrets with them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from calls.redaction.redactor import Redactor
from proxy.cli.files import export_command
from proxy.commands.export import SecretSearch
from proxy.commands.export_spans import ExportedSpans, SpanExport, export_spans
from proxy.errors import Failure
from proxy.processes.store_client import Api
from store.database.connection import Database
from store.otlp.target import SpanOptions
from tests.store.otlp.receiver import receiving
from tests.store.otlp.recorded import agent, attributes, decode_spans, store_run
from tests.store.running_store import RunningStore, is_problem, open_store

KEY = b"0" * 32


async def export(running_store: RunningStore, run: str, **export_options: Any) -> ExportedSpans:
    """Export a run of this store server."""
    span_export = SpanExport(search=SecretSearch(redactor=Redactor(key=KEY)), **export_options)
    with Api(str(running_store.api.base_url)) as api:
        return await asyncio.to_thread(export_spans, api, run, span_export)


async def test_spans_are_written_to_a_file(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spools", database) as running_store:
        run = await store_run(database, agent())
        file = tmp_path / "run.pb"
        made = await export(running_store, run, options=SpanOptions(project="p"), output=file)
        assert made.as_json() == {"run": run, "format": "otlp", "spans": 7, "file": str(file), "endpoint": None}
        assert len(decode_spans([file.read_bytes()])) == 7
        answer = await running_store.api.get(f"/v1/runs/{run}/spans", params={"receiver_project": "p"})
        assert answer.headers["content-type"] == "application/x-protobuf"
        assert answer.content == file.read_bytes()
        is_problem(await running_store.api.get("/v1/runs/nowhere/spans"), 404)
        is_problem(await running_store.api.get(f"/v1/runs/{run}/spans", params={"semconv": "1.2"}), 422)
        is_problem(await running_store.api.get(f"/v1/runs/{run}/spans", params={"body": "true"}), 400)
        assert (await running_store.api.get("/readyz")).json()["exports"] == {}


async def test_spans_are_sent_with_the_headers_that_were_given(tmp_path: Path, database: Database) -> None:
    async with open_store(tmp_path / "spools", database) as running_store, receiving() as receiver:
        run = await store_run(database, [one for one in agent() if one.request.headers])
        sent = await export(running_store, run, options=SpanOptions(), endpoint=receiver.url, headers={"X-Key": "1"})
        assert sent.spans == len(receiver.spans) == 7
        assert all("x-key: 1" in head.lower() for head in receiver.heads)
        assert "input.value" not in attributes(receiver.spans[0])


async def test_a_server_that_refuses_spans_is_reported(tmp_path: Path, database: Database) -> None:
    async with (
        open_store(tmp_path / "spools", database) as running_store,
        receiving((401, {}, b"who are you?")) as receiver,
    ):
        run = await store_run(database, agent())
        with pytest.raises(
            Failure, match=r"were not sent: .* refuses spans with 401: who are you\?; check the endpoint"
        ):
            await export(running_store, run, options=SpanOptions(), endpoint=receiver.url)


async def test_content_with_what_seems_to_be_a_secret_does_not_leave(tmp_path: Path, database: Database) -> None:
    first, *others = agent()
    body = first.request.body.data.replace(
        b"Where is", b"sk-proj-Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9vYmFyYmF6cXV4Zm9v is"
    )
    leaking = [_with_request(first, body), *others]
    async with open_store(tmp_path / "spools", database) as running_store, receiving() as receiver:
        run = await store_run(database, leaking)
        with pytest.raises(Failure, match="what looks like a secret"):
            await export(running_store, run, options=SpanOptions(content=True), endpoint=receiver.url)
        assert receiver.tries == 0
        await export(running_store, run, options=SpanOptions(), endpoint=receiver.url)
        assert receiver.spans


def _with_request(exchange: Any, body: bytes) -> Any:
    from msgspec.structs import replace

    return replace(
        exchange, request=replace(exchange.request, body=replace(exchange.request.body, data=body, size=len(body)))
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--content"], "need --format otlp"),
        (["--format", "otlp", "--endpoint", "http://a", "-o", "x"], "choose one"),
        (["--format", "otlp", "--endpoint", "a:1", "--data", "/tmp/x"], "is not a URL"),
    ],
)
def test_options_that_do_not_fit_are_refused(flags: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(export_command, ["run", *flags, "--data", str(tmp_path)])
    assert done.exit_code == 2, json.dumps(done.output)
    assert message in done.output
