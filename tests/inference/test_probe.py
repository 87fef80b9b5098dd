"""The probe finds what varies, and does not treat missing answers as proof."""

import json
import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.cli import playhead
from proxy.errors import Failure
from proxy.inference.plans import PRESETS, Preset, ProbeSize, waves
from proxy.inference.plot import DIGIT, LEFT, RIGHT, WIDTH, draw_plot, labelled_loads
from proxy.inference.tally import ProbeAnswer, count_answers, first_divergence, probe_verdict
from tests.support.model_server import ModelServer, serving


@pytest.fixture
def steady() -> Iterator[ModelServer]:
    with serving(ModelServer(claim="true")) as model:
        yield model


@pytest.fixture
def varying() -> Iterator[ModelServer]:
    with serving(ModelServer(varies=True)) as model:
        yield model


def run_probe(*words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(playhead, ["inference", "probe", "--json", *words])
    return done.exit_code, json.loads(done.stdout)


SMALL = ("--requests", "9", "--concurrency", "4", "--tokens", "4")


def test_one_answer_where_the_control_had_more_is_invariant(
    steady: ModelServer, varying: ModelServer, tmp_path: Path
) -> None:
    picture = tmp_path / "distinct.svg"
    code, report = run_probe(steady.url, "--control", varying.url, "--svg", str(picture), *SMALL)
    assert (code, report["verdict"]) == (0, "invariant")
    assert [subject["distinct"] for subject in report["servers"][0]["subjects"]] == [1, 1]
    assert max(subject["distinct"] for subject in report["servers"][1]["subjects"]) > 1
    assert report["servers"][0]["claim"] == "true"
    assert len(list(ET.parse(picture).iter("{http://www.w3.org/2000/svg}polyline"))) == 2


def test_a_bit_of_a_logprob_is_enough_to_vary(varying: ModelServer) -> None:
    code, report = run_probe(varying.url, *SMALL)
    assert (code, report["verdict"]) == (1, "varies")
    worst = max(report["servers"][0]["subjects"], key=lambda subject: subject["distinct"])
    assert worst["texts"] == 1
    assert 0 < worst["logprob_delta"] < 1e-8


def test_without_a_control_nothing_is_shown(steady: ModelServer) -> None:
    code, report = run_probe(steady.url, *SMALL)
    assert (code, report["verdict"]) == (3, "inconclusive")
    assert "--control" in report["reason"]


def test_a_control_that_did_not_vary_shows_nothing(steady: ModelServer) -> None:
    code, report = run_probe(steady.url, "--control", steady.url, *SMALL)
    assert (code, report["verdict"]) == (3, "inconclusive")


def test_text_alone_shows_nothing(varying: ModelServer) -> None:
    with serving(ModelServer(logprobs=False)) as silent:
        code, report = run_probe(silent.url, "--control", varying.url, *SMALL)
    assert (code, report["verdict"]) == (3, "inconclusive")
    assert "no logprobs" in report["reason"]


def test_failures_are_reported_and_leave_the_result_open(varying: ModelServer) -> None:
    with serving(ModelServer(status=503)) as broken:
        code, report = run_probe(broken.url, "--control", varying.url, *SMALL)
    assert (code, report["verdict"]) == (3, "inconclusive")
    assert "503" in report["reason"]


def test_chat_is_asked_where_there_are_no_completions(varying: ModelServer) -> None:
    code, report = run_probe(varying.url, "--chat", *SMALL)
    assert (code, report["verdict"]) == (1, "varies")
    assert all("messages" in body for body in varying.asked)


def test_only_vllm_is_sent_a_salt_and_never_twice_the_same(steady: ModelServer) -> None:
    run_probe(steady.url, *SMALL)
    salts = [body["cache_salt"] for body in steady.asked]
    assert len(set(salts)) == len(salts)
    with serving(ModelServer(owner="somebody")) as other:
        run_probe(other.url, *SMALL)
        assert all("cache_salt" not in body for body in other.asked)


def test_nobody_at_home_is_one_sentence() -> None:
    done = CliRunner().invoke(playhead, ["inference", "probe", "http://127.0.0.1:1"])
    assert isinstance(done.exception, Failure)
    assert "is it up?" in str(done.exception)


def test_people_read_a_table_and_the_reason(varying: ModelServer) -> None:
    done = CliRunner().invoke(playhead, ["inference", "probe", varying.url, *SMALL])
    assert "QUESTION" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("varies: ")


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_asks_the_same_of_both_servers(preset: Preset) -> None:
    one, other = (list(waves(preset, ProbeSize(concurrency=8), random.Random(7))) for _ in range(2))
    assert one == other


def test_presets_ask_what_was_published() -> None:
    plans = {preset: list(waves(preset, ProbeSize(), random.Random(0))) for preset in PRESETS}
    thousand = [ask for wave in plans["thinking-machines"] for ask in wave]
    assert (len(thousand), len(set(map(str, thousand))), thousand[0].tokens) == (1000, 1, 1000)
    alone, *trials = plans["vllm"]
    assert (len(alone), len(trials)) == (1, 5)
    assert all(64 <= len(trial) <= 128 and sum(bool(ask.subject) for ask in trial) == 1 for trial in trials)
    subjects = {ask.subject for wave in plans["sglang"] for ask in wave}
    assert subjects == {"single", "mixed", "prefix-1", "prefix-511", "prefix-2048", "prefix-4097", None}
    assert max(map(len, plans["sglang"])) == 50


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=15)
@given(most=st.integers(1, 64), requests=st.integers(1, 12))
def test_no_wave_is_larger_than_allowed(preset: Preset, most: int, requests: int) -> None:
    plan = list(waves(preset, ProbeSize(concurrency=most, requests=requests), random.Random(1)))
    assert max(map(len, plan)) <= most
    assert all(wave for wave in plan)


@given(st.lists(st.lists(st.sampled_from("ab"), max_size=5).map(tuple), max_size=4))
def test_divergence_is_the_length_of_what_is_common(sequences: list[tuple[str, ...]]) -> None:
    at = first_divergence(sequences)
    heads = {sequence[:at] for sequence in sequences}
    assert len(heads) <= 1 if at is not None else len(set(sequences)) <= 1
    assert at is None or len({sequence[: at + 1] for sequence in sequences}) > 1


def test_distinct_answers_are_counted_up_to_each_load() -> None:
    given_ = [
        ProbeAnswer(subject="s", load=load, text="t", tokens=("t",), logprobs=(value,))
        for load, value in [(1, -1.0), (4, -1.0), (8, -1.1), (16, -1.2)]
    ]
    found = count_answers("http://a", given_, [], 1.0)
    assert found.subjects[0].by_load == {1: 1, 4: 1, 8: 2, 16: 3}
    assert probe_verdict(found, None)[0] == "varies"
    assert "http://a" in draw_plot("t", [found])


def test_hostile_names_do_not_break_out_of_a_plot() -> None:
    found = count_answers("http://a/<script>", [ProbeAnswer(subject="s", load=1, text="t")], [], 1.0)
    assert "<script>" not in draw_plot("<script>", [found])
    ET.fromstring(draw_plot("<script>", [found]))


def test_nothing_to_plot_is_still_a_picture() -> None:
    ET.fromstring(draw_plot("nothing", [count_answers("http://a", [], ["status 503"], 0.1)]))


def test_numbers_under_the_axis_do_not_collide() -> None:
    for loads in ([1], list(range(1, 51)), [2**power for power in range(11)], list(range(1000, 1050))):
        found = labelled_loads(loads)
        spread = (WIDTH - LEFT - RIGHT) / len(loads)
        places = [loads.index(load) * spread for load in found]
        widest = max(len(str(load)) for load in loads) * DIGIT
        assert found[-1] == loads[-1]
        assert all(after - before >= widest for before, after in pairwise(places))
