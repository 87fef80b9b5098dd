"""Record an agent, replay it without a network, and show that it gets the same bytes.

The demo runs the commands that it shows. It leaves nothing running, and no files outside its directory.
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
    """The context of the demo: where it runs and prints, and the run that it records."""

    shell: Shell
    screen: Screen
    run: str
    offline: bool
    """Whether replays run in a network namespace without a network, which not every system allows."""

    @property
    def bundle(self) -> str:
        return f"{self.run}.jsonl"


async def run_demo(home: Path, screen: Screen) -> int:
    """Run the demo, and return its exit code: 1 if the replay differed from the recording."""
    return await run_story(
        Story(
            shell=prepare_directory(home, screen.output_width),
            screen=screen,
            run=f"demo-{secrets.token_hex(2)}",
            offline=offline.can_leave_network(),
        )
    )


def prepare_directory(home: Path, columns: int = 100) -> Shell:
    """Create the demo's directory with the agent in it. Raises Failure."""
    for package in AGENT_NEEDS:
        if find_spec(package) is None:
            raise Failure(
                f"the demo's agent needs {' and '.join(AGENT_NEEDS)}, and this environment has no {package}: install it, or"
                " run ./playhead demo in a checkout"
            )
    try:
        # When the demo runs as root, Postgres runs as another user, who must be able to enter the directory.
        home.mkdir(parents=True, exist_ok=True, mode=0o711)
        # Another user could have put files into a directory in /tmp whose name can be guessed.
        if home.lstat().st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user")
        shutil.copyfile(AGENT_FILE, home / "agent.py")
    except OSError as error:
        raise Failure(f"the demo cannot use {home}: {error.strerror}; choose another with --home DIR") from error
    return Shell(directory=home, columns=columns)


async def run_story(story: Story) -> int:
    """Run and print all steps."""
    began = time.monotonic()
    screen = story.screen
    screen.print_line("An agent is recorded at work, then works again with the network gone.")
    async with running_servers(story):
        recorded = await record_agent(story)
        await show_recording(story)
    same = await replay_agent(story, recorded)
    missed = await replay_changed_prompt(story)
    print_next_steps(story, time.monotonic() - began)
    return 0 if same and missed else 1


@asynccontextmanager
async def running_servers(story: Story) -> AsyncIterator[None]:
    """Run both servers and Playhead while the block runs."""
    screen, shell = story.screen, story.shell
    screen.print_step("start", "a fake model, a fake help desk, and Playhead with its own Postgres")
    began = time.monotonic()
    async with shell.background_command([sys.executable, "-m", "proxy.demo.servers"], "servers.log") as line:
        (shell.directory / "playhead.toml").write_text(CONFIG.format(**json.loads(line)))
        up = ["playhead", "up", "--proxy-port", "0", "--api-port", "0"]
        screen.print_command(shlex.join(up))
        async with shell.background_command(up, "up.log") as ready:
            screen.print_fact(f"{ready.strip()}  ({time.monotonic() - began:.1f} s)")
            yield
        screen.print_step("cut", "Playhead, the model and the help desk are stopped; their names never resolved")


async def record_agent(story: Story) -> ShellResult:
    """Run the agent with all its traffic recorded."""
    story.screen.print_step(
        "record", "an agent calls the model, runs the two tools that it requests, and calls it again"
    )
    ran = await run_command(story, ["playhead", "record", "--run", story.run, "--", *AGENT], is_streamed=True)
    if ran.code:
        raise Failure(f"the demo's agent could not be recorded: {ran.error.strip() or f'exit status {ran.code}'}")
    story.screen.print_quote(ran.error)
    return ran


async def show_recording(story: Story) -> None:
    """Show what was recorded, and export the run to a file."""
    story.screen.print_step("look", "every call is in Postgres as it crossed the wire, and can be exported to a file")
    for command in (["playhead", "show", story.run], ["playhead", "export", story.run, "-o", story.bundle]):
        ran = await run_command(story, command)
        if ran.code:
            raise Failure(f"`{shlex.join(command)}` failed: {ran.error.strip() or f'exit status {ran.code}'}")
        story.screen.print_output(ran.out or ran.error)


async def replay_agent(story: Story, recorded: ShellResult) -> bool:
    """Run the agent again from the recording. A live answer would have new ids and times."""
    where = "in a network namespace with no interface but loopback" if story.offline else "with all servers stopped"
    story.screen.print_step("replay", f"the same agent, {where}")
    ran = await run_command(story, ["playhead", "replay", story.bundle, "--", *AGENT], is_offline=story.offline)
    story.screen.print_quote(ran.error)
    if ran.code == 0 and ran.out == recorded.out:
        story.screen.print_success("the same, byte for byte:")
        story.screen.print_quote("".join(ran.out.splitlines(keepends=True)[-2:]))
        return True
    story.screen.print_failure(f"NOT the same (exit status {ran.code}):")
    story.screen.print_output(
        "\n".join(unified_diff(recorded.out.splitlines(), ran.out.splitlines(), "recorded", "replayed"))
    )
    story.screen.print_line()
    return False


async def replay_changed_prompt(story: Story) -> bool:
    """Run the agent with another prompt, which must miss."""
    story.screen.print_step(
        "change", "the same agent with another prompt: a request that was not recorded gets no answer"
    )
    command = ["playhead", "replay", story.bundle, "--", *AGENT, CHANGED_PROMPT]
    ran = await run_command(story, command, is_offline=story.offline)
    story.screen.print_quote(ran.error)
    if ran.code and "424" in ran.error:
        return True
    story.screen.print_failure(f"this should have missed, but the exit status is {ran.code}")
    return False


async def run_command(
    story: Story, command: Sequence[str], *, is_streamed: bool = False, is_offline: bool = False
) -> ShellResult:
    """Show a command and run it."""
    story.screen.print_command(shlex.join(command))
    line = offline.without_network(command) if is_offline else command
    ran = await story.shell.run(line, story.screen.print_output) if is_streamed else await story.shell.run(line)
    if is_offline and ran.code == offline.FORBIDDEN_EXIT_CODE and not ran.out:
        raise Failure(ran.error.strip())
    return ran


def print_next_steps(story: Story, seconds: float) -> None:
    screen = story.screen
    screen.print_step(
        "next", f"that took {seconds:.0f} s; nothing is left running, and all files are in {story.shell.directory}"
    )
    screen.print_command("./playhead record -- python your_agent.py")
    screen.print_command("./playhead replay last -- python your_agent.py")
    screen.print_command("./playhead doctor")
    screen.print_quote(
        "The last one tests which clients on this machine would bypass the recorder, and how to fix that."
    )
