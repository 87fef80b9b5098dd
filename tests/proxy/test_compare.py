"""diff, bisect and drift as a person uses them: real processes, files and a running service."""

import asyncio
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calls.model import Exchange
from proxy.commands.bisect import BisectResult, Verdict, find_bracket, verdict_sentence
from proxy.terminal.render_drift import show_drift
from proxy.terminal.table import Sheet, display_text, display_width
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry, bundle_lines
from tests.store.agents import MODEL, TOOL, Agent
from tests.store.samples import NOON, SECOND, exchange
from tests.support.service import command, running, surroundings

HOSTILE = "omega \x1b[31mred\u202e \u4e16\u754c"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCommand:
    """A command that ended."""

    code: int
    out: str
    err: str


async def run_playhead(place: Path, *arguments: str | Path, **more: str) -> EndedCommand:
    """Run a command with a data directory of its own."""
    around = surroundings()
    name, *rest = map(str, arguments)
    process = await asyncio.create_subprocess_exec(
        *command(name, "--data", str(place / "d"), *rest),
        cwd=place,
        env=around | more,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 90)
    return EndedCommand(code=process.returncode or 0, out=out.decode(), err=err.decode())


def save_agent(place: Path, name: str, agent: Agent) -> Path:
    """A bundle of what this agent did."""
    entries = tuple(Entry(exchange=each) for each in agent.run(name))
    file = place / f"{name}.jsonl"
    file.write_bytes(
        b"".join(bundle_lines(Bundle(run={"id": name}, profiles=load_profiles(None).digest, entries=entries)))
    )
    return file


def finding(*turns: int, what: str = HOSTILE) -> Agent:
    """An agent whose tool finds something else at these turns."""
    return Agent(turns=6, finds=lambda turn: {"found": what if turn in turns else f"alpha {turn} beta"})


@pytest.fixture
def home(data: Path) -> Path:
    return data.parent


async def test_files_that_are_the_same_exit_with_0(home: Path) -> None:
    save_agent(home, "one", Agent())
    save_agent(home, "other", Agent())
    done = await run_playhead(home, "diff", "one.jsonl", "other.jsonl")
    assert (done.code, done.err) == (0, "")
    assert "= 8 equal calls" in done.out
    assert "the runs are the same" in done.out
    # Nobody needed a store server for that.
    assert not (home / "d").exists()


async def test_files_that_differ_exit_with_1_and_say_where_and_why(home: Path) -> None:
    save_agent(home, "good", finding())
    save_agent(home, "bad", finding(1))
    done = await run_playhead(home, "diff", "good.jsonl", "bad.jsonl", COLUMNS="100")
    assert done.code == 1
    lines = done.out.splitlines()
    assert lines[2:5] == [
        "= 3 equal calls",
        "≠    4  POST tools.example.com/search  answered differently",
        "       answer /found",
    ]
    assert lines[5].split("│") == [
        "         [-alpha 1 beta-]".ljust(54),
        " {+omega \\x1b[31mred\\u202e \u4e16\u754c+}",
    ]
    assert lines[6] == "› 4 equal calls and 4 calls that follow from step 4"
    assert lines[-1].startswith("the runs diverge at step 4 (POST tools.example.com/search): ")
    assert all(char.isprintable() for line in lines for char in line)


async def test_a_narrow_terminal_gets_one_under_the_other(home: Path) -> None:
    save_agent(home, "good", finding())
    save_agent(home, "bad", finding(1))
    done = await run_playhead(home, "diff", "good.jsonl", "bad.jsonl", COLUMNS="60")
    assert "         - [-alpha 1 beta-]\n         + {+omega" in done.out


async def test_the_same_in_json(home: Path) -> None:
    save_agent(home, "good", finding())
    save_agent(home, "bad", finding(1))
    done = await run_playhead(home, "diff", "good.jsonl", "bad.jsonl", "--json")
    answer = json.loads(done.out)
    assert done.code == 1
    assert (answer["cause"]["cause"], answer["cause"]["a_step"], answer["cause"]["leads_to"]) == ("tool_answer", 4, 4)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (
            ("none.jsonl", "good.jsonl"),
            "there is no bundle none.jsonl; make one with: playhead export RUN -o none.jsonl",
        ),
        (("good.jsonl", "broken.jsonl"), "broken.jsonl: "),
    ],
)
async def test_what_cannot_be_compared_is_trouble(home: Path, names: tuple[str, str], why: str) -> None:
    save_agent(home, "good", Agent(turns=1))
    (home / "broken.jsonl").write_text('{"playhead":"bundle"\n')
    done = await run_playhead(home, "diff", *names)
    assert done.code == 125
    assert why in done.err


@pytest.mark.slow
async def test_runs_of_the_store_are_compared_with_one_another_and_with_files_and_show_drift(
    data: Path, database_url: str
) -> None:
    home = data.parent
    save_agent(home, "good", finding())
    save_agent(home, "bad", Agent(turns=6, model="gpt-5-2026-09-09", offset=1000))
    async with running(data, "--database-url", database_url):
        assert (await run_playhead(home, "import", "good.jsonl", "bad.jsonl")).code == 0
        runs = await run_playhead(home, "diff", "good", "bad", "--json")
        mixed = await run_playhead(home, "diff", "good.jsonl", "bad", "--json")
        assert runs.code == mixed.code == 1, (runs.err, mixed.err)
        assert json.loads(runs.out)["pairs"] == json.loads(mixed.out)["pairs"]
        (home / "checks.toml").write_text('[[rule]]\nkind = "require"\ntools = ["search"]\n')
        checked = await run_playhead(home, "check", "good", "bad.jsonl")
        assert checked.out.splitlines() == [
            "good: 1 of 1 rule holds (12 steps)",
            "bad.jsonl: 1 of 1 rule holds (12 steps)",
        ]
        unknown = await run_playhead(home, "diff", "good", "nothing")
        assert unknown.code == 125
        assert "there is no run nothing here" in unknown.err

        drift = await run_playhead(home, "drift", "--since", "520w")
        assert drift.code == 0, drift.err
        assert "gpt-5-2026-09-09 (fp_1) answers instead of gpt-5-2026-01-01 (fp_1)" in drift.out
        assert "6 calls before, 6 after" in drift.out
        assert (await run_playhead(home, "drift", "--exit-code", "--model", "gpt-5")).code == 1
        assert json.loads((await run_playhead(home, "drift", "--json", "--model", "gpt-4")).out)["items"] == []


AGENT = """
import json, sys, urllib.request
def post(url, body):
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(asked, timeout=60))
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find out."}]
bad = []
for turn in range(6):
    body = {"model": "gpt-5", "messages": messages}
    message = post("https://api.openai.com/v1/chat/completions", body)["choices"][0]["message"]
    call = message["tool_calls"][0]
    found = post("https://tools.example.com/search", json.loads(call["function"]["arguments"]))
    print("turn", turn)
    said = {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found)}
    # It forgets what it was told, so that one answer does not change what is asked later.
    messages = [*messages[:2], message, said] if %r else [*messages, message, said]
    bad += [turn] * found["found"].startswith("omega")
sys.exit(%s)
"""


@pytest.mark.slow
async def test_the_answer_that_makes_a_command_fail_is_found(home: Path, python: str) -> None:
    save_agent(home, "good", finding())
    save_agent(home, "bad", finding(1))
    (home / "agent.py").write_text(AGENT % (False, "bool(bad)"))
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl", "--", python, "agent.py")
    assert done.code == 0, done.err
    assert done.out == "step 4 (POST tools.example.com/search): with the answer of BAD the command fails\n"
    assert "trial 1: no answer of BAD: exit 0: good" in done.err
    assert "trial 2: BAD's answers at step 4: exit 1: bad" in done.err
    assert "turn 5" in done.err
    assert not list((home / "d" / "replays").iterdir())


@pytest.mark.slow
async def test_of_several_answers_the_first_that_turns_the_outcome_is_found(home: Path, python: str) -> None:
    """The tool finds other things at four turns; the command minds only that of turn 3, and does not mind any two."""
    save_agent(home, "good", Agent(turns=6, grows=False))
    save_agent(
        home, "bad", Agent(turns=6, grows=False, finds=lambda turn: {"found": "omega" if turn != 2 else "alpha 2 beta"})
    )
    (home / "agent.py").write_text(AGENT % (True, "3 in bad"))
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl", "--json", "--", python, "agent.py")
    answer = json.loads(done.out)
    assert done.code == 0, done.err
    assert answer["verdict"] == "found"
    assert answer["alone"] is True
    assert [one["a"]["step"] for one in answer["culprits"]] == [8]
    assert len(answer["trials"]) <= 6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("judges", "why"),
    [
        ("1", "it fails with the answers of GOOD"),
        ("0", "it succeeds with all answers of BAD, so they are not"),
        ("125", "it exited with 125, which means that it cannot be judged"),
    ],
)
async def test_a_command_that_does_not_behave_as_the_runs_did_is_said_to(
    home: Path, judges: str, why: str, python: str
) -> None:
    save_agent(home, "good", finding())
    save_agent(home, "bad", finding(1))
    (home / "agent.py").write_text(AGENT % (False, judges))
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl", "--", python, "agent.py")
    assert done.code == 125
    assert why in done.err


def stamping_agent(offset: int, *turns: int, **more: Any) -> Agent:
    """Its tool tells the time, and a uuid, in each answer; at these turns it finds something else."""

    def finds(turn: int) -> Any:
        at = datetime.fromtimestamp(NOON // SECOND + (2 * turn + 1) * 10 + offset, UTC)
        served = {"served_at": at.isoformat(), "request": {"id": str(uuid.UUID(int=turn * 7919 + offset * 104729 + 1))}}
        return {**(more["finds"](turn) if "finds" in more else {}), "found": what(turn), **served}

    def what(turn: int) -> str:
        return HOSTILE if turn in turns else f"alpha {turn} beta"

    return Agent(turns=6, finds=finds, offset=offset)


@pytest.mark.slow
@pytest.mark.parametrize("minds", ["found", "nothing but the time"])
async def test_a_time_in_each_answer_does_not_hide_the_answer_that_matters(home: Path, minds: str, python: str) -> None:
    save_agent(home, "good", stamping_agent(0))
    save_agent(home, "bad", stamping_agent(4000, 1))
    judges = "bool(bad)" if minds == "found" else "'T13:' in messages[-1]['content']"
    (home / "agent.py").write_text(AGENT % (False, judges))
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl", "--", python, "agent.py")
    if minds == "found":
        assert done.out == "step 4 (POST tools.example.com/search): with the answer of BAD the command fails\n", (
            done.err
        )
        assert (done.code, " missed" in done.err) == (0, False), done.err
    else:
        assert "trying every difference" in done.err
        assert done.code in (0, 1), done.err


PARALLEL = """
import concurrent.futures, json, sys, urllib.request
def post(url, body):
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    return json.load(urllib.request.urlopen(asked, timeout=60))
messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find out."}]
with concurrent.futures.ThreadPoolExecutor() as pool:
    for turn in range(3):
        message = post("https://api.openai.com/v1/chat/completions", {"model": "gpt-5", "messages": messages})
        calls = message["choices"][0]["message"]["tool_calls"]
        asked = [json.loads(call["function"]["arguments"]) for call in calls]
        found = list(pool.map(lambda one: post("https://tools.example.com/search", one), asked))
        said = [{"role": "tool", "tool_call_id": call["id"], "content": json.dumps(one)} for call, one in zip(calls, found)]
        messages = [*messages, message["choices"][0]["message"], *said]
sys.exit("omega" in json.dumps(messages))
"""


@pytest.mark.slow
@pytest.mark.parametrize("stamps", [False, True])
async def test_of_two_tools_in_parallel_the_one_that_matters_is_found(home: Path, stamps: bool, python: str) -> None:
    side_by_side(home, "good", offset=0, stamps=stamps, swapped=False)
    side_by_side(home, "bad", offset=4000, stamps=stamps, swapped=True, omega=(1, "b"))
    (home / "agent.py").write_text(PARALLEL)
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl", "--", python, "agent.py")
    assert done.out == "step 6 (of B: 5) (POST tools.example.com/search): with the answer of BAD the command fails\n", (
        done.err
    )
    assert (done.code, " missed" in done.err) == (0, False), done.err
    compared = await run_playhead(home, "diff", "good.jsonl", "bad.jsonl", "--json")
    answer = json.loads(compared.out)
    assert (answer["cause"]["cause"], answer["cause"]["a_step"], answer["roots"]) == ("tool_answer", 6, 1), answer[
        "pairs"
    ]


def test_answers_that_cannot_be_tried_apart_are_all_named() -> None:
    culprits: Any = [SimpleNamespace(where=f"step {number} (POST tools.example.com/search)") for number in (3, 4)]
    words = verdict_sentence(BisectResult(culprits=culprits, alone=None, trials=()))
    assert words.startswith(
        "step 3 (POST tools.example.com/search) and step 4 (POST tools.example.com/search): with these answers of BAD the command fails; "
    )


def side_by_side(
    place: Path, name: str, *, offset: int, stamps: bool, swapped: bool, omega: tuple[int, str] | None = None
) -> None:
    """A bundle of an agent whose model asks for two tools at a time. In which order they are asked is chance."""
    made: list[Exchange] = []
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Find out."}]

    def add(seconds: int, url: str, asked: Any, result: Any) -> None:
        number = offset * 1000 + len(made) + 1
        at = NOON + (offset + seconds) * SECOND
        request, response = json.dumps(asked).encode(), json.dumps(result).encode()
        made.append(exchange(number, run=name, at=at, url=url, request=request, response=response))

    for turn in range(3):
        calls = [
            {"id": f"call_{name}_{turn}{tool}", "type": "function", "function": {"name": "search", "arguments": text}}
            for tool in "ab"
            if (text := json.dumps({"q": f"{tool} {turn}"}))
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        whole = {"id": f"chatcmpl-{name}-{turn}", "object": "chat.completion", "model": "gpt-5", "created": offset}
        answer = {**whole, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
        add(turn * 10, MODEL, {"model": "gpt-5", "messages": messages}, answer)
        found: dict[str, Any] = {}
        for tool in "ba" if swapped else "ab":
            now = datetime.fromtimestamp(NOON // SECOND + offset + turn * 10 + 1, UTC).isoformat()
            what = "omega" if omega == (turn, tool) else f"{tool} {turn}"
            found[tool] = {"found": what, **({"served_at": now} if stamps else {})}
            add(turn * 10 + 1, TOOL, {"q": f"{tool} {turn}"}, found[tool])
        said = [
            {"role": "tool", "tool_call_id": call["id"], "content": json.dumps(found[tool])}
            for call, tool in zip(calls, "ab", strict=True)
        ]
        messages = [*messages, message, *said]
    entries = tuple(Entry(exchange=each) for each in made)
    bundle = Bundle(run={"id": name}, profiles=load_profiles(None).digest, entries=entries)
    (place / f"{name}.jsonl").write_bytes(b"".join(bundle_lines(bundle)))


async def test_runs_that_differ_only_in_what_answers_make_anew_are_the_same(home: Path) -> None:
    save_agent(home, "one", stamping_agent(0))
    save_agent(home, "other", stamping_agent(4000))
    done = await run_playhead(home, "diff", "one.jsonl", "other.jsonl", "--json")
    answer = json.loads(done.out)
    assert set(answer["counts"]) == {"same", "volatile"}, answer["pairs"]
    assert (done.code, answer["same"], answer["cause"]) == (0, True, None)


async def test_what_a_profile_says_to_ignore_in_answers_is_no_difference(home: Path) -> None:
    save_agent(home, "one", Agent(finds=lambda turn: {"found": f"alpha {turn}", "took": 10 + turn}))
    save_agent(home, "other", Agent(finds=lambda turn: {"found": f"alpha {turn}", "took": 30 + turn}))
    assert (await run_playhead(home, "diff", "one.jsonl", "other.jsonl")).code == 1
    rules = '[[profile]]\nname = "tools/1"\nextends = "rest/1"\nmatch = { host = "tools.example.com" }\n'
    (home / "playhead.toml").write_text(f'{rules}answer = {{ ignore = ["$.took"] }}\n')
    done = await run_playhead(home, "diff", "one.jsonl", "other.jsonl", "--json")
    assert (done.code, json.loads(done.out)["same"]) == (0, True), done.out


async def test_without_a_command_it_is_where_the_runs_part(home: Path) -> None:
    save_agent(home, "good", finding())
    save_agent(home, "bad", finding(1))
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl")
    assert done.code == 0
    assert done.out.startswith(
        "step 4 (POST tools.example.com/search): a tool or service answered the same request differently"
    )


async def test_runs_without_an_answer_to_try_are_refused(home: Path) -> None:
    save_agent(home, "good", Agent(turns=1))
    save_agent(home, "bad", Agent(turns=1, system="Be verbose."))
    done = await run_playhead(home, "bisect", "good.jsonl", "bad.jsonl", "--", "true")
    assert done.code == 125
    assert "no request that both runs made was answered differently" in done.err
    assert "step 1 (POST api.openai.com/v1/chat/completions): the request differs" in done.err


@given(st.integers(1, 60), st.data())
def test_a_bracket_closes_around_the_turn_whatever_must_be_skipped(count: int, data: st.DataObject) -> None:
    turn = data.draw(st.integers(1, count))
    skipped = data.draw(st.sets(st.integers(1, count - 1))) if count > 1 else set()
    tried: list[int] = []

    async def judge(number: int) -> Verdict:
        tried.append(number)
        return "skip" if number in skipped else "bad" if number >= turn else "good"

    low, high = asyncio.run(find_bracket(count, judge))
    assert low < turn <= high
    assert skipped.issuperset(range(low + 1, high))
    assert len(set(tried)) == len(tried)
    assert skipped or len(tried) <= count.bit_length()


def test_drift_of_one_model_says_nothing_about_the_others() -> None:
    document: dict[str, Any] = {"variants": [], "items": [], "answers": []}
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.terminal.table.click.echo", lambda line, color: lines.append(line))
        show_drift(document, Sheet(width=200, colour=False), ["--model nope"])
        show_drift(document, Sheet(width=200, colour=False))
    assert lines == [
        "no model has answered for --model nope; leave these options out to see which have: playhead drift",
        "no model has answered yet; record a run with: playhead record -- COMMAND",
    ]


BY_BOTH = "    688 calls by m-1 (fp_1), the last at 2026-11-15 04:56:36; 552 by m-2 (fp_1)"


@pytest.mark.parametrize(
    ("status", "how", "second_line"),
    [
        ("replaced", "answers instead of", "    688 calls before, 552 after"),
        ("rolled_out", "answers beside, and since 2026-11-15 04:56:36 instead of", BY_BOTH),
        ("alternates", "answers by turns with", BY_BOTH),
    ],
)
def test_drift_says_when_a_model_that_is_rolled_out_bit_by_bit_answered_last(
    status: str, how: str, second_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [{"model_returned": name, "system_fingerprint": "fp_1"} for name in ("m-1", "m-2")]
    change = {
        "provider": "openai",
        "model_requested": "m",
        "kind": "model",
        "from": names[0],
        "to": names[1],
        "first_at": "2026-11-10T01:16:22Z",
        "last_before_at": "2026-11-15T04:56:36Z",
        "replaced": status == "replaced",
        "rolled_out": status == "rolled_out",
        "calls_before": 688,
        "calls_after": 552,
        "examples": {"before": ["a"], "after": ["b"]},
        "same_requests": {"asked_again": 0, "answered_otherwise": 0, "example": None},
    }
    variant = {**names[1], "provider": "openai", "model_requested": "m", "calls": 552}
    times = {"first_at": change["first_at"], "last_at": change["first_at"]}
    document = {"variants": [{**variant, **times}], "items": [change], "answers": [], "latencies": []}
    show_drift(document, Sheet(width=200, colour=False))
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith(f"since 2026-11-10 01:16:22 m-2 (fp_1) {how} m-1 (fp_1)")
    assert second == second_line


@given(st.text())
def test_whatever_came_over_the_wire_is_shown_and_never_obeyed(text: str) -> None:
    assert all(char.isprintable() for char in display_text(text))


@given(st.lists(st.text(min_size=1), max_size=3), st.integers(20, 120))
def test_no_line_is_wider_than_the_terminal(texts: list[str], width: int) -> None:
    lines: list[str] = []
    sheet = Sheet(width=width, colour=False)
    runs = [(display_text(text), "gone") for text in texts]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.terminal.table.click.echo", lambda line, color: lines.append(line))
        sheet.print_line(*runs)
        sheet.print_columns(runs, runs, indent=9)
    assert lines
    assert all(display_width(line) <= width for line in lines)


def test_colour_is_for_terminals_alone() -> None:
    lines: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.terminal.table.click.echo", lambda line, color: lines.append(line))
        Sheet(width=80, colour=True).print_line(("gone", "gone"))
        Sheet(width=80, colour=False).print_line(("gone", "gone"))
    assert lines == ["\x1b[31mgone\x1b[0m", "gone"]
