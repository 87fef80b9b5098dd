"""What a process that forks for tests imports and computes ahead, which each of its forks would do anew.

`forks.py` runs this file: it is a script beside which the tests are not found. Nothing of this checkout is imported before a
function is called.
"""

import os
import runpy
import sys
import types
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]

IMPORTED: Final = (
    "store.api.app",
    "proxy.lane.lane",
    "proxy.lane.h2.client",
    "proxy.worker.stored_recordings",
    "proxy.capture.namespace.launch",
    "proxy.effects.channel",
    "proxy.trust.truststore",
    "uvloop",
    "uvicorn.lifespan.off",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets.websockets_sansio_impl",
    "anyio._backends._asyncio",
    "cryptography.hazmat.backends.openssl.backend",
    "calls.keys.jsonpath",
    "asyncpg",
    "greenlet",
    "encodings.idna",
    "replay.requested_options",
    "store.api.render",
    "store.large.worker",
    "store.proof.signing_keys",
)
"""What programs import only when they need it."""

EVENT: Final = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n'
SECRET_TEXT: Final = "Authorization: Bearer abc key=sk-proj-01234567890123456789012345678901"


def import_programs(modules: Sequence[str]) -> None:
    """Import these modules and what the programs import, and compute once what depends on no settings: profiles and expressions."""
    import_module("proxy.cli")
    commands = sys.modules["proxy.cli"].COMMANDS
    for name in sorted({f"proxy.cli.{module}" for module, _ in commands.values()}):
        import_module(name)
    for name in (*modules, *IMPORTED):
        import_module(name)
    runpy.run_path(str(Path(__file__).with_name("roots.py")))["use_one_root"]()
    runpy.run_path(str(Path(__file__).with_name("clusters.py")))["use_copies"]()
    _compute_once()


def _compute_once() -> None:
    """What each worker or store server would compute anew: the built-in profiles, the expressions of secrets, the prices."""
    redactor_module, stored_profiles = import_module("calls.redaction.redactor"), import_module("store.active_profiles")
    profiles = stored_profiles.load_profiles()
    for profile in profiles.profiles:
        _ = profile.plan
    redactor = redactor_module.Redactor(key=bytes(32), profiles=profiles)
    redactor.prepare()
    # Some expressions are compiled when text looks like a secret, and RE2 builds parts of its automata when they are needed.
    redactor.redact_text(SECRET_TEXT)
    events = b"".join(EVENT % word for word in (b"The", b" token", b" is", *SECRET_TEXT.encode().split()))
    whole = b'{"api_key": "%s", "text": "You are brief.", "at": "2026-11-26T10:00:00Z"}' % SECRET_TEXT.encode()
    for content_type, data in (
        ("application/json", whole),
        ("text/event-stream", events),
        ("text/plain", b"x" * 2000),
    ):
        redactor_module.redact_whole_body(redactor.new_body_redactor(content_type), data)
    # What a worker, an ingester or an export does with a recorded exchange.
    derive_call, find_leaks = import_module("calls.derive").derive_call, import_module("store.bundle.leaks").find_leaks
    example = (ROOT / "docs" / "trace-format.example.jsonl").read_bytes().splitlines(keepends=True)
    for exchange in import_module("store.bundle.bundle").read_bundle(example).exchanges:
        list(find_leaks(1, exchange, redactor))
        derive_call(exchange, profiles)
    vars(import_module("store.pricing.prices"))["_tables"]()
    app = import_module("store.api.app")
    dependencies = [import_module("fastapi").Depends(app.refuse_unknown_parameters)]
    for prefix, router in app.ROUTERS:
        for route in router.routes:
            _ = route.with_prefix(prefix, dependencies).dependant


def _prepare_for_tests() -> None:
    """Read and compute what tests of many modules do, and each worker would do anew."""
    import_module("tests.support.corpus").read_cassettes()
    _compute_once()


def import_tests(directory: str, arguments: list[str]) -> None:
    """Collect tests; end, if that went wrong. A module that failed would stay imported in part, and not fail again."""
    reports: list[Any] = []
    watcher = types.ModuleType("watcher")
    vars(watcher)["pytest_collectreport"] = lambda report: reports.append(report)
    # Before pytest ends: it warns of packages with a plugin that were imported without it, and a worker that it warns ends.
    vars(watcher)["pytest_unconfigure"] = _prepare_for_tests
    os.chdir(directory)
    # Nobody reads the list of the tests.
    code = import_module("pytest").main([*arguments, "--collect-only", "-qqq"], plugins=[watcher])
    os.chdir("/")
    if code not in (0, 5) or not all(report.passed for report in reports):
        os._exit(1)
