"""Whatever a user sets about redaction reaches every process that redacts."""

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from calls.redaction.redactor import Redactor, create_redactor
from calls.redaction.settings import RedactionSettings
from proxy.cli.common import reading_redactor, step_reader, user_profiles
from proxy.cli.files import _load_redactor
from proxy.fixtures.process import SuiteParts
from proxy.processes.command_processes import CommandProcesses
from proxy.processes.settings_match import WORKER_SETTINGS, differing_settings, setting_digests
from proxy.settings import Settings, load_settings
from proxy.worker.process import _build_parts
from proxy.worker_config import WorkerConfig
from store.datadir import open_data_dir
from store.server_config import StoreServerConfig

TOKEN: Final = ".".join(
    urlsafe_b64encode(part).decode().rstrip("=")
    for part in (b'{"alg":"RS256","typ":"JWT"}', b'{"iss":"https://login.example","sub":"u-1"}', b"s" * 48)
)
ANSWER: Final = json.dumps({"by": "Ada Lovelace", "mail": "ada@example.com", "id_token": TOKEN}).encode()

SET: Final[dict[str, dict[str, Any]]] = {
    "personal_data": {"redact_personal_data": True},
    "names": {"redact_names": ["Ada Lovelace"]},
    "keep_token_claims": {"keep_token_claims": True},
}
"""How a user sets each field, to something else than its default."""


def redact_answer(redactor: Redactor) -> bytes:
    return redactor.redact_body(ANSWER, "application/json", is_answer=True)[0]


def _stored_facts(redactor: Redactor) -> set[bytes]:
    """Return what of the answer is stored as it is, whatever the key."""
    facts = (b"Ada Lovelace", b"ada@example.com", TOKEN.encode().rpartition(b".")[0])
    return {fact for fact in facts if fact in redact_answer(redactor)}


def found_by_worker(settings: Settings, _flags: dict[str, Any]) -> Redactor:
    sent = msgspec.json.encode(CommandProcesses(settings).worker_config())
    config = msgspec.json.decode(sent, type=WorkerConfig)

    async def build() -> Redactor:
        return (await _build_parts(config, open_data_dir(settings.data), None, asyncio.Event())).redactor

    return asyncio.run(build())


def found_by_suite(settings: Settings, _flags: dict[str, Any]) -> Redactor:
    return SuiteParts.load(settings).redactor


def found_by_import(_settings: Settings, flags: dict[str, Any]) -> Redactor:
    return _load_redactor(flags)[0]


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(RedactionSettings)])
@pytest.mark.parametrize("find", [found_by_worker, found_by_suite, found_by_import])
def test_each_setting_reaches_what_stores(
    find: Callable[[Settings, dict[str, Any]], Redactor], name: str, tmp_path: Path
) -> None:
    flags = {"data": tmp_path, "config": None, **SET[name]}
    settings = load_settings(SET[name] | {"data": tmp_path}, None)
    key = open_data_dir(tmp_path).redaction_key()
    expected = redact_answer(create_redactor(settings.redaction, key))
    assert expected != redact_answer(create_redactor(RedactionSettings(), key)), "the setting changes what is stored"
    assert redact_answer(find(settings, flags)) == expected


@pytest.mark.parametrize("name", SET)
def test_each_setting_reaches_the_store_server_and_what_only_reads(name: str, tmp_path: Path) -> None:
    settings = load_settings(SET[name] | {"data": tmp_path}, None)
    sent = msgspec.json.encode(CommandProcesses(settings)._store_server_config(0, "127.0.0.1", is_lasting=False))
    assert msgspec.json.decode(sent, type=StoreServerConfig).redaction == settings.redaction
    default = create_redactor(RedactionSettings(), b"k" * 32)
    for redactor in (reading_redactor(settings, user_profiles(settings)), step_reader(settings)[1]):
        assert _stored_facts(redactor) != _stored_facts(default)


@pytest.mark.parametrize("name", SET)
def test_a_command_that_sets_one_otherwise_than_an_up_knows_it(name: str, tmp_path: Path) -> None:
    known = setting_digests(load_settings({"data": tmp_path}, None), WORKER_SETTINGS)
    assert differing_settings(load_settings(SET[name] | {"data": tmp_path}, None), known) == list(SET[name])
