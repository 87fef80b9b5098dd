"""The launcher keeps a server that shows that it is patched, and stops any other."""

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy.cli import playhead
from proxy.errors import Failure
from proxy.inference.server import (
    ROOT,
    ServerOptions,
    check_threads,
    environment_directory,
    ready_line,
    server_command,
    server_environment,
    set_up_environment,
)

SERVING = ServerOptions(
    model="qwen3", device="cpu", host="127.0.0.1", port=0, context=4096, threads=2, cache_gib=1, degrade=False
)
HOLDS = {"verdict": "holds", "fingerprint": "sha256:00"}
URL = "http://127.0.0.1:9000"


def test_what_holds_is_announced() -> None:
    line = f"ready inference={URL} invariance=holds fingerprint=sha256:00"
    assert ready_line(URL, HOLDS, "sha256:00", degrade=False) == line
    remembered = {**HOLDS, "cached": True, "checked_at": "2026-11-22T20:00:00Z"}
    assert ready_line(URL, remembered, "sha256:00", degrade=False) == f"{line} cached=2026-11-22T20:00:00Z"


@pytest.mark.parametrize(
    ("report", "fingerprint", "degrade"),
    [
        ({}, None, False),
        ({}, None, True),
        (HOLDS, None, True),
        (HOLDS, "sha256:11", False),
        ({**HOLDS, "verdict": "varies"}, "sha256:00", False),
        ({**HOLDS, "verdict": "inconclusive"}, "sha256:00", False),
    ],
)
def test_what_does_not_show_it_is_stopped(report: dict[str, str], fingerprint: str | None, degrade: bool) -> None:
    with pytest.raises(Failure, match="was stopped"):
        ready_line(URL, report, fingerprint, degrade)


def test_degraded_is_announced_as_what_it_is() -> None:
    assert "invariance=varies" in ready_line(URL, {**HOLDS, "verdict": "varies"}, "sha256:00", degrade=True)


def test_a_cpu_gets_fixed_threads_and_never_vllm_s_own_mode() -> None:
    made = server_environment(SERVING, {"VLLM_BATCH_INVARIANT": "1", "HOME": "/home/me"})
    assert made["OMP_NUM_THREADS"] == "2"
    assert made["HOME"] == "/home/me"
    assert "VLLM_BATCH_INVARIANT" not in made
    assert "--enforce-eager" in server_command(Path("/env"), SERVING, 9000)


def test_a_gpu_gets_vllm_s_own_mode_before_anything_is_imported() -> None:
    gpu = ServerOptions(
        model="qwen3", device="gpu", host="127.0.0.1", port=0, context=4096, threads=2, cache_gib=1, degrade=False
    )
    assert server_environment(gpu, {})["VLLM_BATCH_INVARIANT"] == "1"
    assert server_environment(gpu, {})["PLAYHEAD_KERNELS"] == "vllm"
    assert "TRITON_ATTN" in server_command(Path("/env"), gpu, 9000)


def test_stock_is_vllm_alone_and_its_chunks_do_not_end_it() -> None:
    stock = replace(SERVING, stock=True)
    made = server_environment(stock, {"VLLM_PLUGINS": "playhead_inference"})
    assert made["VLLM_PLUGINS"] == "none"
    assert not [name for name in made if name.startswith("PLAYHEAD")]
    words = server_command(Path("/env"), stock, 9000)
    assert "vllm.entrypoints.openai.api_server" in words
    assert "playhead_inference" not in words
    assert "--no-enable-chunked-prefill" in words


def test_stock_takes_no_claim_and_no_kernels_of_ours() -> None:
    done = CliRunner().invoke(playhead, ["inference", "up", "--stock", "--degrade", "qwen3"])
    assert done.exit_code == 2
    assert "--stock serves vLLM without the patch" in done.output


@pytest.mark.parametrize(
    ("threads", "words"), [(4, "--threads 4 is more than the 2 CPUs that this process may use"), (0, "1 or more")]
)
def test_threads_that_cannot_be_had_are_refused(threads: int, words: str) -> None:
    with pytest.raises(Failure, match=words):
        check_threads(threads, 2)


def test_as_many_threads_as_cpus_are_taken() -> None:
    check_threads(2, 2)


def test_a_check_that_is_to_be_repeated_remembers_nothing() -> None:
    assert server_environment(replace(SERVING, recheck=True), {})["PLAYHEAD_VERDICTS"] == "off"


UV = """#!/bin/sh
case "$*" in *"pip sync"*) echo "error: Failed to fetch: https://download.pytorch.org/whl/cpu/torch/: dns error" >&2; exit 2;; esac
"""


def test_setup_without_the_index_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "uv"
    uv.write_text(UV)
    uv.chmod(0o755)
    monkeypatch.setenv("PLAYHEAD_UV", str(uv))
    with pytest.raises(Failure, match=r"torch==2\.13\.0\+cpu could not be fetched.*--wheels DIR"):
        set_up_environment(tmp_path / "env", "cpu", None)
    with pytest.raises(Failure, match="holds no wheel of torch"):
        set_up_environment(tmp_path / "env", "cpu", tmp_path)


def test_our_kernels_are_for_a_gpu() -> None:
    done = CliRunner().invoke(playhead, ["inference", "up", "--kernels", "own", "qwen3"])
    assert done.exit_code == 2
    assert "needs a GPU" in done.output


def test_an_environment_is_found_where_it_was_said_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLAYHEAD_INFERENCE_ENV", "/somewhere")
    assert environment_directory(None) == Path("/somewhere")
    assert environment_directory(Path("/else")) == Path("/else")


def test_without_an_environment_the_command_that_makes_it_is_named(tmp_path: Path) -> None:
    done = CliRunner().invoke(playhead, ["inference", "up", "--env", str(tmp_path), "qwen3"])
    assert isinstance(done.exception, Failure)
    assert "playhead inference setup" in str(done.exception)


@pytest.mark.parametrize(
    "server",
    [
        "import http.server as h; h.HTTPServer(('127.0.0.1', {port}), type('H', (h.BaseHTTPRequestHandler,),"
        " dict(do_GET=lambda s: (s.send_response(200 if s.path == '/health' else 404), s.end_headers())))).serve_forever()",
    ],
)
def test_a_server_that_started_unpatched_is_stopped(server: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(
        f"#!{sys.executable}\nimport sys\nport = sys.argv[sys.argv.index('--port') + 1]\n"
        + server.replace("{port}", "int(port)")
    )
    python.chmod(0o755)
    done = CliRunner().invoke(playhead, ["inference", "up", "--env", str(tmp_path), "--port", "0", "qwen3"])
    assert isinstance(done.exception, Failure)
    assert "not patched" in str(done.exception)


def test_beyond_loopback_a_key_is_required(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    done = CliRunner().invoke(playhead, ["inference", "up", "--env", str(tmp_path), "--listen", "0.0.0.0", "qwen3"])
    assert isinstance(done.exception, Failure)
    assert "VLLM_API_KEY" in str(done.exception)


def test_a_server_that_ends_by_itself_is_a_failure_that_names_its_status(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to("/bin/false")
    done = CliRunner().invoke(playhead, ["inference", "up", "--env", str(tmp_path), "--port", "0", "qwen3"])
    assert isinstance(done.exception, Failure)
    assert "ended with status 1" in str(done.exception)


def test_a_server_ends_when_whoever_started_it_is_gone() -> None:
    code = "import threading; from playhead_inference.__main__ import _end_with_parent; _end_with_parent(); threading.Event().wait(60)"
    server = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)})
    assert server.stdin is not None
    server.stdin.close()
    assert server.wait(timeout=60) == -signal.SIGTERM
