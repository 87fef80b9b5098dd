"""Record an agent, replay it without a network, and show that it gets every byte again.

Every command that it shows is the command that it runs. It leaves nothing running, and nothing outside its directory.
"""

import errno
import json
import os
import secrets
import shlex
import shutil
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import unified_diff
from importlib.util import find_spec
from pathlib import Path

from proxy.demo import offline
from proxy.demo.screen import Screen
from proxy.demo.service import Shell, ShellResult
from proxy.errors import Failure

CHANGED_PROMPT = "Which login tickets are open? Leave a note on the oldest."
AGENT = ("python", "agent.py")
AGENT_FILE = Path(__file__).parent / "agent.py"
AGENT_NEEDS = ("openai", "requests")

CONFIG = """\
# The demo's hosts exist nowhere: these servers, on this machine, answer in their place.
[upstreams]
"api.model.example" = "http://127.0.0.1:{model}"
"tickets.example.com" = "http://127.0.0.1:{tickets}"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is told, where, and about which run."""

    shell: Shell
    screen: Screen
    run: str
    offline: bool
    """Whether this machine lets us cut the network off, and not only the servers."""

    @property
    def bundle(self) -> str:
        return f"{self.run}.jsonl"


async def demo(home: Path, screen: Screen) -> int:
    """Tell the whole story. 0: it went as it should; 1: the replay was not what was recorded."""
    return await told(
        Story(
            shell=prepared(home, screen.room),
            screen=screen,
            run=f"demo-{secrets.token_hex(2)}",
            offline=offline.allowed(),
        )
    )


def prepared(home: Path, columns: int = 100) -> Shell:
    """The demo's directory, with the agent in it."""
    for needed in AGENT_NEEDS:
        if find_spec(needed) is None:
            raise Failure(
                f"the demo's agent is written with {' and '.join(AGENT_NEEDS)}, and this environment has no {needed};"
                " install it there, or run ./playhead demo in a checkout"
            )
    try:
        # As root Postgres runs as another user, who must be able to pass through.
        home.mkdir(parents=True, exist_ok=True, mode=0o711)
        # Its name can be guessed and others may write to /tmp: what lies there could be run as us.
        if home.lstat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to somebody else")
        shutil.copyfile(AGENT_FILE, home / "agent.py")
    except OSError as error:
        raise Failure(f"the demo cannot use {home}: {error.strerror}; choose another with --home DIR") from error
    return Shell(directory=home, columns=columns)


async def told(story: Story) -> int:
    """The story from its first line to its last."""
    began = time.monotonic()
    screen = story.screen
    screen.line("An agent is recorded at work, then works again with the network gone.")
    async with serving(story):
        recorded = await record(story)
        await look(story)
    same = await replay(story, recorded)
    missed = await change(story)
    closing(story, time.monotonic() - began)
    return 0 if same and missed else 1


@asynccontextmanager
async def serving(story: Story) -> AsyncIterator[None]:
    """Both servers and Playhead, running for as long as the block lasts."""
    screen, shell = story.screen, story.shell
    screen.step("start", "a model and a help desk that are not there, and Playhead with a Postgres of its own")
    began = time.monotonic()
    async with shell.running([sys.executable, "-m", "proxy.demo.servers"], "servers.log") as line:
        (shell.directory / "playhead.toml").write_text(CONFIG.format(**json.loads(line)))
        up = ["playhead", "up", "--proxy-port", "0", "--api-port", "0"]
        screen.command(shlex.join(up))
        async with shell.running(up, "up.log") as ready:
            screen.fact(f"{ready.strip()}  ({time.monotonic() - began:.1f} s)")
            yield
        screen.step("cut", "Playhead, the model and the help desk are stopped; their names never resolved")


async def record(story: Story) -> ShellResult:
    """The agent at work, with its whole traffic through the recorder."""
    story.screen.step("record", "an agent asks the model, runs the two tools that it wants, and asks again")
    ran = await typed(story, ["playhead", "record", "--run", story.run, "--", *AGENT], aloud=True)
    if ran.code:
        raise Failure(f"the demo's agent could not be recorded: {ran.error.strip() or f'exit status {ran.code}'}")
    story.screen.quote(ran.error)
    return ran


async def look(story: Story) -> None:
    """What was recorded, and the run as a file to keep."""
    story.screen.step("look", "every call, as it crossed the wire, is in Postgres, and can be taken along as a file")
    for command in (["playhead", "show", story.run], ["playhead", "export", story.run, "-o", story.bundle]):
        ran = await typed(story, command)
        if ran.code:
            raise Failure(f"`{shlex.join(command)}` failed: {ran.error.strip() or f'exit status {ran.code}'}")
        story.screen.hear(ran.out or ran.error)


async def replay(story: Story, recorded: ShellResult) -> bool:
    """The same agent again. Its ids and times would be new ones if anything but the recording answered."""
    where = "in a network namespace with no interface but loopback" if story.offline else "with nothing left to ask"
    story.screen.step("replay", f"the same agent, {where}")
    ran = await typed(story, ["playhead", "replay", story.bundle, "--", *AGENT], cut=story.offline)
    story.screen.quote(ran.error)
    if ran.code == 0 and ran.out == recorded.out:
        story.screen.good("the same, byte for byte:")
        story.screen.quote("".join(ran.out.splitlines(keepends=True)[-2:]))
        return True
    story.screen.bad(f"NOT the same (exit status {ran.code}):")
    story.screen.hear("\n".join(unified_diff(recorded.out.splitlines(), ran.out.splitlines(), "recorded", "replayed")))
    story.screen.line()
    return False


async def change(story: Story) -> bool:
    """Another prompt: a recording must not answer a question that was never asked."""
    story.screen.step("change", "the same agent with another prompt: no answer is better than a wrong one")
    command = ["playhead", "replay", story.bundle, "--", *AGENT, CHANGED_PROMPT]
    ran = await typed(story, command, cut=story.offline)
    story.screen.quote(ran.error)
    if ran.code and "424" in ran.error:
        return True
    story.screen.bad(f"this should have missed, but the exit status is {ran.code}")
    return False


async def typed(story: Story, command: Sequence[str], *, aloud: bool = False, cut: bool = False) -> ShellResult:
    """Show a command and run it."""
    story.screen.command(shlex.join(command))
    line = offline.without_network(command) if cut else command
    ran = await story.shell.run(line, story.screen.hear) if aloud else await story.shell.run(line)
    if cut and ran.code == offline.FORBIDDEN and not ran.out:
        raise Failure(ran.error.strip())
    return ran


def closing(story: Story, seconds: float) -> None:
    screen = story.screen
    screen.step(
        "next", f"that took {seconds:.0f} s; nothing is left running, and all of it lies in {story.shell.directory}"
    )
    screen.command("./playhead record -- python your_agent.py")
    screen.command("./playhead replay last -- python your_agent.py")
    screen.command("./playhead doctor")
    screen.quote("The last one tells which clients on this machine would escape the recorder, and how to stop them.")
