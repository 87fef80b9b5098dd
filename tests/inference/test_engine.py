"""The real engine on a CPU: what the server claims, asked of the server itself.

These take minutes and an environment of their own, so they run where PLAYHEAD_INFERENCE_ENV names it:

    playhead inference setup
    PLAYHEAD_INFERENCE_ENV=inference/.venv pytest tests/inference/test_engine.py -s
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ.get("PLAYHEAD_INFERENCE_ENV")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        ENVIRONMENT is None,
        reason="PLAYHEAD_INFERENCE_ENV names no environment; make one with `playhead inference setup`",
    ),
]


@pytest.fixture(scope="session")
def python() -> str:
    return str(Path(ENVIRONMENT or "").absolute() / "bin" / "python")


@pytest.fixture(scope="session")
def model(python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    code = "import sys, pathlib; from proof.models import create_model; create_model(pathlib.Path(sys.argv[1]), 'dense', 2)"
    subprocess.run([python, "-c", code, str(place)], cwd=ROOT / "inference", check=True, capture_output=True)
    return place / "dense-2"


def up(*words: str) -> list[str]:
    return [sys.executable, "-c", "from proxy.cli import main; main()", "inference", "up", "--port", "0", *words]


def refusal_message(*words: str) -> str:
    """The message of a server that does not start."""
    done = subprocess.run(up(*words), cwd=ROOT, capture_output=True, text=True, check=False, timeout=800)
    assert (done.returncode, done.stdout) == (125, "")
    return done.stderr


@pytest.fixture(scope="session")
def url(model: Path) -> Iterator[str]:
    """One server for all tests. It must be patched although `VLLM_PLUGINS` names another plugin."""
    environment = os.environ | {"VLLM_PLUGINS": "another"}
    words = up("--recheck", str(model), "--", "--max-num-seqs", "64")
    server = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    ready = dict(word.split("=", 1) for word in server.stdout.readline().split()[1:])
    assert ready.get("invariance") == "holds", "the server did not start; its words are above"
    yield ready["inference"]
    server.send_signal(signal.SIGTERM)
    server.wait(timeout=60)
    server.stdout.close()


def ask(url: str, **body: Any) -> httpx2.Response:
    asked = {"model": httpx2.get(f"{url}/v1/models").json()["data"][0]["id"], "max_tokens": 12, "logprobs": 5, **body}
    return httpx2.post(f"{url}/v1/completions", json=asked, timeout=300)


LONG = " ".join(f"def f{number}(x): return x * {number}" for number in range(150))


def test_it_shows_what_it_checked(url: str) -> None:
    answer = httpx2.get(f"{url}/batch_invariance")
    report = answer.json()
    assert answer.headers["x-batch-invariant"] == "not-claimed; reason=path"
    assert report["verdict"] == "holds"
    assert report["uncovered"] == []
    assert report["operations"][0]["none"] == 0
    assert {"aten.silu", "_C.onednn_mm", "_C.rotary_embedding", "aten.mean"} <= {
        each["operation"] for each in report["operations"][0]["verdicts"] if each["kind"] == "swept"
    }
    assert report["seen"][0]["largest"] == report["checked"]["max_num_seqs"]
    assert report["layers"]["differing"] == []
    assert report["layers"]["swept"] > 20
    assert all(cell["distinct"] == 1 for cell in report["patched"])
    assert all(cell["distinct"] > 1 for cell in report["control"] if cell["name"] != "continued")
    assert [cell["name"] for cell in report["patched"]] == ["greedy", "seeded", "shaped", "continued", "shrinking"]
    assert report["workers"][0]["attention"] == ["playhead_inference.attention.Backend"]


def test_an_answer_carries_the_claim_where_it_was_checked(url: str) -> None:
    answer = ask(url, prompt="import", temperature=0)
    assert answer.headers["x-batch-invariant"] == "true"
    fingerprint = answer.headers["x-batch-invariant-fingerprint"]
    assert answer.json()["system_fingerprint"] == f"playhead-{fingerprint.removeprefix('sha256:')[:16]}"
    unseeded = ask(url, prompt="import", temperature=1)
    assert unseeded.headers["x-batch-invariant"] == "not-claimed; reason=unseeded"


def test_a_seeded_prompt_that_is_cut_into_chunks_neither_ends_the_engine_nor_changes(url: str) -> None:
    prompt = LONG + LONG
    answers = [ask(url, prompt=prompt, temperature=0.8, seed=7, cache_salt=str(at)).json() for at in range(3)]
    assert answers[0]["usage"]["prompt_tokens"] > 2048
    assert len({json.dumps(answer["choices"]) for answer in answers}) == 1


def test_a_stream_has_the_numbers_of_the_whole(url: str) -> None:
    asked = {"prompt": LONG, "temperature": 0}
    whole = ask(url, **asked).json()["choices"][0]["logprobs"]
    pieces = [
        json.loads(line.removeprefix("data: "))["choices"][0]["logprobs"]
        for line in ask(url, **asked, stream=True).text.splitlines()
        if line.startswith("data: {")
    ]
    for name in ("tokens", "token_logprobs"):
        assert [value for piece in pieces for value in piece[name]] == whole[name]


def test_a_recorded_run_is_derived_again(url: str, data: Path) -> None:
    name = httpx2.get(f"{url}/v1/models").json()["data"][0]["id"]
    body = json.dumps({"model": name, "prompt": LONG, "max_tokens": 8, "temperature": 0, "logprobs": 5})
    streamed = json.dumps({"model": name, "prompt": LONG, "max_tokens": 8, "temperature": 0, "stream": True})
    script = (
        "import httpx\n"
        f"for body in ({body!r}, {streamed!r}):\n"
        "    httpx.post('https://api.openai.com/v1/completions', content=body, timeout=300,\n"
        "        headers={'content-type': 'application/json'}).raise_for_status()\n"
    )
    environment = os.environ | {"PLAYHEAD_DATA": str(data), "PLAYHEAD_UPSTREAMS": json.dumps({"api.openai.com": url})}
    said = [
        subprocess.run(
            [sys.executable, "-c", "from proxy.cli import main; main()", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        for words in (
            ["record", "--run", "asked", "--", sys.executable, "-c", script],
            ["inference", "replay", "asked", "--json"],
        )
    ]
    assert said[0].returncode == 0, said[0].stderr
    assert said[1].returncode == 0, said[1].stdout + said[1].stderr
    answer = json.loads(said[1].stdout)
    assert (answer["verdict"], answer["asked"]) == ("rederived", 2), answer


def test_what_was_not_tested_is_not_served(model: Path) -> None:
    assert "bfloat16 was not tested on a CPU" in refusal_message(str(model), "--", "--dtype", "bfloat16")


def test_a_check_that_could_not_have_failed_is_not_taken_for_proof(model: Path) -> None:
    # With such a short context, stock vLLM uses one tile too.
    assert "batch invariance inconclusive" in refusal_message("--context", "20", str(model))


@pytest.mark.parametrize(
    "cell",
    [
        "dense-r8-600-whole-preempted-x4-streamed-seeded-t4",
        "moe-r2-1200-chunked-prefix-x4-final-greedy",
    ],
)
def test_stock_varies_and_ours_does_not(python: str, cell: str, model: Path) -> None:
    found = printed_json(python, "-m", "proof", cell, "--models", str(model.parent))
    assert found["stock"]["distinct"] > 1
    assert found["patched"]["distinct"] == 1
    assert found["layers_differing"] == []


@pytest.mark.parametrize("threads", ["2", "3"])
def test_identical_short_prompts_in_large_batches_get_one_answer(python: str, threads: str, model: Path) -> None:
    """An activation function of 1,000 columns was wrong when torch divided a row between two threads."""
    found = printed_json(python, "-m", "proof", "--uneven", "--threads", threads, "--models", str(model.parent))
    assert found["stock"]["distinct"] > 1
    assert found["patched"]["distinct"] == 1


@pytest.mark.skipif("REAL_MODEL" not in os.environ, reason="REAL_MODEL names no directory that `proof.real` made")
def test_so_it_is_with_real_weights(python: str) -> None:
    found = printed_json(python, "-m", "proof", "--real", os.environ["REAL_MODEL"])
    assert found["stock"]["distinct"] > 1
    assert found["patched"]["distinct"] == 1


def test_a_control_of_its_own_is_stock_vllm_and_says_whose(python: str, model: Path, tmp_path: Path) -> None:
    """A GPU's control, as far as a CPU can run it."""
    file = tmp_path / "control.json"
    words = ["--model", str(model), "--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"]
    subprocess.run([python, "-m", "playhead_inference.control", str(file), *words], check=True, env=os.environ | CPU)
    found = json.loads(file.read_text())
    assert all(cell["distinct"] > 1 for cell in found["cells"] if cell["name"] != "continued")
    assert found["of"]["model"]["checkpoint"][0].startswith("sha256:")


def test_a_gpu_s_start_goes_as_far_as_the_device(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control runs (here on a CPU); then vLLM's own mode is enabled, and refused on a CPU."""
    for name, value in CPU.items():
        monkeypatch.setenv(name, value)
    said = refusal_message(
        "--device", "gpu", "--context", "2048", str(model), "--", "--dtype", "float32", "--enforce-eager"
    )
    assert "VLLM_BATCH_INVARIANT must be unset on a CPU" in said


CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "2"}


def printed_json(*words: str) -> dict[str, Any]:
    """The output line that begins with a brace, because vLLM writes to stdout too."""
    done = subprocess.run(words, cwd=ROOT / "inference", capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return found
