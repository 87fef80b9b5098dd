"""Compare the cost of a test suite in replay with pytest-playhead and with VCR.py: `python -m bench.suite [--tests 15
200]`.

Each test creates a client of OpenAI's SDK and makes five calls. Both suites have the same tests and the same recorded
calls, and run in turns. Prints the user time of pytest and all processes that it starts, until all have ended.
"""

import argparse
import os
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from bench.figures import Spread
from bench.wire import MeasurementFailed
from calls.codec.json import dumps
from calls.keys.key import make_key
from calls.keys.profile import Profiles
from calls.model import Body, Chunk, Exchange, Json, Request, Response
from store.active_profiles import load_profiles
from store.bundle.bundle import Bundle, Entry, bundle_lines
from store.foreign.write import Export

HERE: Final = Path(__file__).parent.parent
CALLS: Final = 5
PER_MODULE: Final = 25
SECOND: Final = 1_000_000_000

TEST: Final = """
{mark}
def test_agent_{number}():
    client = openai.OpenAI(api_key="sk-none")
    for step in range({calls}):
        said = [{{"role": "user", "content": f"question {number}/{{step}}: " + "and so on " * 20}}]
        answer = client.chat.completions.create(model="m", messages=said)
        assert answer.choices[0].message.content.startswith(f"answer {number}/{{step}}")
"""

HEADS: Final = {
    "playhead": "import openai\nimport pytest\n",
    "vcr": "import openai\nimport vcr\n\nplayer = vcr.VCR(record_mode='none', match_on=['method', 'uri', 'body'])\n",
    "bare": "import openai\nimport pytest\n",
}

type Cost = tuple[float, float]
"""Seconds of user CPU, and seconds that passed."""


def write_suites(directory: Path, tests: int) -> dict[str, Path]:
    """Write the suites with their recordings; return the directory of each."""
    profiles = load_profiles(None)
    directories = {name: directory / f"{name}-{tests}" for name in HEADS}
    for name, place in directories.items():
        place.mkdir()
        for first in range(0, tests, PER_MODULE):
            module = place / f"test_agents_{first // PER_MODULE}.py"
            numbers = range(first, min(first + PER_MODULE, tests))
            cases = [_case(name, module, number, profiles) for number in numbers]
            module.write_text(HEADS[name] + "".join(cases))
    return directories


def _case(suite: str, module: Path, number: int, profiles: Profiles) -> str:
    mark = ""
    if suite == "playhead":
        mark = "@pytest.mark.playhead"
        recording = module.parent / "recordings" / module.stem / f"test_agent_{number}.jsonl"
        recording.parent.mkdir(parents=True, exist_ok=True)
        entries = _entries(number, profiles)
        run = {"id": f"test-{number}", "name": f"{module.name}::test_agent_{number}"}
        bundle = Bundle(run=run, profiles=profiles.digest, entries=entries)
        with recording.open("wb") as file:
            file.writelines(bundle_lines(bundle))
    elif suite == "vcr":
        cassette = module.parent / "cassettes" / f"{number}.yaml"
        cassette.parent.mkdir(exist_ok=True)
        cassette.write_bytes(b"".join(Export().vcr(_entries(number, profiles))))
        mark = f"@player.use_cassette({str(cassette)!r})"
    else:
        mark = "@pytest.mark.skip"
    return TEST.format(mark=mark, number=number, calls=CALLS)


def _entries(number: int, profiles: Profiles) -> tuple[Entry, ...]:
    exchanges = [recorded_exchange(number, step) for step in range(CALLS)]
    return tuple(Entry(exchange=each, call={"key": make_key(each.request, profiles).key}) for each in exchanges)


def recorded_exchange(number: int, step: int) -> Exchange:
    content = f"question {number}/{step}: " + "and so on " * 20
    request_body = dumps({"messages": [{"role": "user", "content": content}], "model": "m"})
    message: Json = {"role": "assistant", "content": f"answer {number}/{step} " + "and so on " * 20}
    choice: Json = {"index": 0, "message": message, "finish_reason": "stop"}
    answered = dumps({"id": f"c{step}", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})
    media = (("Content-Type", "application/json"),)
    url = "https://api.openai.com/v1/chat/completions"
    at = (number * CALLS + step + 1) * SECOND
    return Exchange(
        id=f"0199aaaa-0000-7000-8000-{number * CALLS + step + 1:012d}",
        run=f"test-{number}",
        request=Request(method="POST", url=url, headers=media, body=_body(request_body)),
        response=Response(status=200, reason="OK", headers=media, body=_body(answered)),
        outcome="completed",
        started_at=at,
        first_byte_at=1,
        ended_at=2,
    )


def _body(data: bytes) -> Body:
    return Body(data=data, chunks=(Chunk(1, 0, len(data)),), size=len(data))


def run(place: Path, checkout: Path, data: Path, arguments: Sequence[str]) -> Cost:
    """Run pytest on a suite."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PLAYHEAD_", "PYTEST_"))}
    program = f"import sys; sys.path.insert(0, {str(checkout)!r}); from proxy.cli import main; main()"
    playhead = shlex.join([sys.executable, "-P", "-c", program])
    environment |= {
        "PYTHONPATH": str(checkout / "clients" / "pytest-playhead" / "src"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PLAYHEAD_COMMAND": playhead,
        "PLAYHEAD_DATA": str(data),
    }
    plugins = ["-p", "pytest_playhead"] if place.name.startswith("playhead") else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", *plugins, *arguments]
    used, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    wall, spent = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise MeasurementFailed(
            f"{place.name} ended with {done.returncode}: {done.stdout[-3000:]} {done.stderr[-2000:]}"
        )
    return spent.ru_utime - used.ru_utime, wall


def measure(directory: Path, tests: int, rounds: int, against: Path | None, arguments: Sequence[str]) -> None:
    """Print the costs of suites of this many tests."""
    places = write_suites(directory, tests)
    measured = {
        "pytest alone": (places["bare"], HERE),
        "VCR.py": (places["vcr"], HERE),
        "playhead": (places["playhead"], HERE),
        **({"playhead, other checkout": (places["playhead"], against)} if against else {}),
    }
    found: dict[str, list[Cost]] = {name: [] for name in measured}
    for number in range(rounds + 1):
        for name, (place, checkout) in measured.items():
            cost = run(place, checkout, directory / f"data-{checkout.name}", arguments)
            if number:
                found[name].append(cost)
    for name, costs in found.items():
        ratio = Spread.of(mine[0] / theirs[0] for mine, theirs in zip(costs, found["VCR.py"], strict=True))
        more = Spread.of(mine[0] - theirs[0] for mine, theirs in zip(costs, found["VCR.py"], strict=True))
        user, wall = Spread.of(each[0] for each in costs), Spread.of(each[1] for each in costs)
        print(f"| {tests} | {name:24} | {user:.2f} | {wall:.2f} | {ratio:.2f} | {more:+.2f} |", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.suite", description=__doc__)
    parser.add_argument("--tests", type=int, nargs="+", default=[15, 200])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--against", type=Path, help="another checkout, whose modules are compiled")
    parser.add_argument("arguments", nargs="*", help="further arguments of pytest, after --, such as -p xdist -n 2")
    options = parser.parse_args()
    print("| tests | | user CPU s | s | CPU over VCR.py's | CPU s more than VCR.py |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(prefix="bench-suite-") as place:
        for tests in options.tests:
            measure(
                Path(place), tests, options.rounds, options.against and options.against.resolve(), options.arguments
            )


if __name__ == "__main__":
    main()
