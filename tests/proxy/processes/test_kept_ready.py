"""A store server that a reading command started stays ready for the next command, and ends by itself."""

import asyncio
import os
import shutil
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proxy.processes.command_processes import LOOPBACK, CommandProcesses
from proxy.settings import Settings, load_settings
from tests.drills.up_processes import until_true


async def read(settings: Settings) -> str:
    """Do as a command that reads; the address of the store server that answered it."""
    async with CommandProcesses(settings) as processes:
        with await processes.connect_store_server(stays_ready=True, may_create=True) as api:
            assert api.get("/runs")["items"] == []
            return api.url


def can_connect(host: str | None, port: int | None) -> bool:
    """Whether anything listens there."""
    with socket.socket() as client:
        return client.connect_ex((host or "", port or 0)) == 0


@pytest.mark.timeout(240)
async def test_a_store_server_stays_ready_until_it_is_idle_or_another_is_needed(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "")
    settings = load_settings({"data": data, "store_idle": 600}, None)
    first = await read(settings)
    lock, notice = CommandProcesses(settings).data.store_lock, data / "store.json"
    assert lock.is_held()
    assert await read(settings) == first
    # With other settings another one answers, which soon has nothing to do.
    other = load_settings({"data": data, "store_idle": 1, "redact_personal_data": True}, None)
    assert await read(other) != first
    await until_true(lambda: not lock.is_held())
    assert not notice.exists()
    assert not (data / "pg" / "data" / "postmaster.pid").exists()
    again = await read(settings)
    async with CommandProcesses(settings) as up:
        child = await up.start_store_server(0, LOOPBACK, is_lasting=True)
        assert again != f"http://{LOOPBACK}:{child.ready['port']}"
    assert not lock.is_held()
    assert not notice.exists()
    assert not (data / "pg" / "data" / "postmaster.pid").exists()
    # Whoever removes the directory meanwhile is not hindered by files that are created in it.
    last = urlsplit(await read(settings))
    await asyncio.to_thread(shutil.rmtree, data)
    await until_true(lambda: not can_connect(last.hostname, last.port))
    assert not await asyncio.to_thread(data.exists)
    await asyncio.to_thread(data.mkdir)


async def test_a_ready_store_server_that_cannot_be_reached_ends_for_the_next_command(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one in the network of a captive command that has ended: each try to use it let it wait anew."""
    monkeypatch.setenv("CI", "")
    settings = load_settings({"data": data, "store_idle": 600}, None)
    await read(settings)
    directory = CommandProcesses(settings).data
    with socket.socket() as nobody:
        nobody.bind((LOOPBACK, 0))
        unreachable = f"http://{LOOPBACK}:{nobody.getsockname()[1]}"
        directory.announce("store", {**(directory.read_notice("store") or {}), "api": unreachable})
        async with asyncio.timeout(30):
            assert await read(load_settings({"data": data, "store_idle": 0}, None)) != unreachable
    await until_true(lambda: not directory.store_lock.is_held())


async def test_an_up_waits_for_a_store_server_that_is_ending_however_long_that_takes(data: Path) -> None:
    """That of a command which has just ended: nobody may use it any more, and it still has the directory."""
    processes = CommandProcesses(load_settings({"data": data}, None))
    with processes.data.store_lock.hold():
        ending = processes.data.users_lock.acquire_exclusive()
        assert ending is not None
        waiting = asyncio.get_running_loop().create_task(processes._await_end_of_ready_server(0.1))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done
        os.close(ending)
    await waiting
    # One that nobody uses and that does not begin to end is another command's own.
    with processes.data.store_lock.hold():
        await processes._await_end_of_ready_server(0.1)


@pytest.mark.parametrize(
    ("setting", "ci"), [({"store_idle": 0}, ""), ({}, "true"), ({"database_url": "postgresql://db/a"}, "")]
)
def test_none_stays_ready_in_ci_or_where_it_is_switched_off(
    data: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, object], ci: str
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.delenv("PLAYHEAD_STORE_IDLE", raising=False)
    assert CommandProcesses(load_settings({"data": data}, None))._may_stay_ready() is (not ci)
    assert not CommandProcesses(load_settings({"data": data, **setting}, None))._may_stay_ready()
    # Within another command, what stays ready is in that command's network.
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("PLAYHEAD_RUN", "run-1")
    assert not CommandProcesses(load_settings({"data": data}, None))._may_stay_ready()


async def test_only_the_store_server_of_an_up_removes_runs_by_itself(data: Path) -> None:
    processes = CommandProcesses(load_settings({"data": data, "retention_budget": "1KB"}, None))
    configs = [processes._store_server_config(0, LOOPBACK, is_lasting=is_lasting) for is_lasting in (True, False)]
    assert [(config.retention.budget, config.runs_retention) for config in configs] == [(1000, True), (1000, False)]
