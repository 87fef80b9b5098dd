"""What coding agents write into their requests anew each time is in no key, and what somebody else writes there is."""

import json
from functools import partial
from typing import Any

import pytest

from tests.calls.sample_requests import ANTHROPIC, OPENAI, VERSION, chat, explained_key, key, user

BILLING = "x-anthropic-billing-header: cc_version=2.1.175.{}; cc_entrypoint=cli; cch={};"


def claude_code(nonce: str) -> dict[str, Any]:
    blocks = [BILLING.format(nonce, nonce), "You are Claude Code."]
    return chat(user("hi"), system=[{"type": "text", "text": text} for text in blocks], max_tokens=1)


def test_14b_the_nonce_of_claude_code_is_not_in_the_key() -> None:
    assert key(ANTHROPIC, claude_code("abc"), VERSION) == key(ANTHROPIC, claude_code("def"), VERSION)
    plain = chat(user("hi"), system="You are Claude Code.", max_tokens=1)
    assert key(ANTHROPIC, claude_code("abc"), VERSION) == key(ANTHROPIC, plain, VERSION)
    assert ("/body/system/0", "nonce") in [
        (one.pointer, one.rule) for one in explained_key(ANTHROPIC, claude_code("abc"), VERSION).left_out_fields
    ]


@pytest.mark.parametrize("role", ["system", "developer"])
def test_14b_a_gateway_may_fold_the_nonce_into_a_message(role: str) -> None:
    def chat_with_nonce(nonce: str) -> dict[str, Any]:
        return chat({"role": role, "content": BILLING.format(nonce, nonce) + "\nYou are Claude Code."}, user("hi"))

    assert key(OPENAI, chat_with_nonce("abc")) == key(OPENAI, chat_with_nonce("def"))
    assert key(OPENAI, chat_with_nonce("abc")) == key(
        OPENAI, chat({"role": role, "content": "You are Claude Code."}, user("hi"))
    )


def test_14b_a_line_that_is_new_each_time_does_not_count_wherever_it_is_in_the_text() -> None:
    def run_of_tool(*lines: str) -> dict[str, Any]:
        return chat(user("hi"), {"role": "tool", "tool_call_id": "c", "content": "\n".join(lines)})

    def gemini(*lines: str) -> dict[str, Any]:
        response = {"functionResponse": {"id": "c", "name": "f", "response": {"output": "\n".join(lines)}}}
        return {"contents": [{"role": "user", "parts": [response]}]}

    for to, body in ((OPENAI, run_of_tool), (GEMINI, gemini)):
        first = body("Command: x", "Background PIDs: 7, 8", "Process Group PGID: 26161", "</untrusted_context>")
        again = body("Command: x", "Background PIDs: 9", "Process Group PGID: 31", "</untrusted_context>")
        assert key(to, first) == key(to, again) == key(to, body("Command: x", "</untrusted_context>"))
        assert [one.rule for one in explained_key(to, first).left_out_fields] == ["nonce"]
        assert key(to, first) != key(to, body("Command: y", "Process Group PGID: 1", "</untrusted_context>"))
        assert key(to, body("a Process Group PGID: 1")) != key(to, body("a Process Group PGID: 2"))


RESPONSES = "https://api.openai.com/v1/responses"
GEMINI = "https://generativelanguage.googleapis.com/v1beta/models/gemini-2.5-pro:generateContent"


def text_part(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def claude_reminder(day: str) -> dict[str, Any]:
    reminder = f"<system-reminder>\n# currentDate\nToday's date is {day}.\n</system-reminder>"
    return chat(user([{"type": "text", "text": reminder}, {"type": "text", "text": "hi"}]), max_tokens=1)


def codex_context(day: str) -> dict[str, Any]:
    text = f"<environment_context>\n  <cwd>/a</cwd>\n  <current_date>{day}</current_date>\n</environment_context>"
    return {
        "model": "m",
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}],
    }


def gemini_context(day: str) -> dict[str, Any]:
    return {"contents": [{"role": "user", "parts": [{"text": f"<session_context>\nToday's date is {day}\nx"}]}]}


@pytest.mark.parametrize(
    ("to", "body", "headers"),
    [
        (ANTHROPIC, claude_reminder, (VERSION,)),
        (
            ANTHROPIC,
            lambda day: chat(system=[{"type": "text", "text": f"You are opencode.\n  Today's date: {day}"}]),
            (VERSION,),
        ),
        (
            ANTHROPIC,
            lambda day: chat(system=[{"type": "text", "text": f" - Shell: bash\n - OS Version: {day}"}]),
            (VERSION,),
        ),
        (RESPONSES, codex_context, ()),
        (
            RESPONSES,
            lambda day: {
                "model": "m",
                "input": [{"content": f"You are OpenCode.\n<env>\n  Today's date: {day}\n</env>"}],
            },
            (),
        ),
        (
            OPENAI,
            lambda day: chat({"role": "system", "content": f"You are OpenCode.\n<env>\n  Today's date: {day}\n</env>"}),
            (),
        ),
        (
            OPENAI,
            lambda day: chat(user([{"type": "text", "text": f"This is the Qwen Code.\nToday's date is {day}"}])),
            {},
        ),
        (GEMINI, gemini_context, ()),
        *(
            (to, partial(body, begins), headers)
            for to, body, headers in (
                (OPENAI, lambda text, day: chat({"role": "system", "content": text.format(day)}), ()),
                (
                    RESPONSES,
                    lambda text, day: {"input": [{"role": "developer", "content": [text_part(text.format(day))]}]},
                    (),
                ),
                (RESPONSES, lambda text, day: {"input": [{"role": "developer", "content": text.format(day)}]}, ()),
                (ANTHROPIC, lambda text, day: chat(system=[{"type": "text", "text": text.format(day)}]), (VERSION,)),
            )
            for begins in (
                "You are Cline, an AI.\n<env>\n2. Date: {}\n3. IDE: Terminal",
                "You are an agent in the Continue CLI.\nToday's date: {}\n</env>",
                "You are the GitHub Copilot CLI, a terminal.\nSession folder: /home/me/.copilot/session-state/{}\n",
                "Act as an expert software developer.\n- Language: English\n- Current date: {}\n",
            )
        ),
        (RESPONSES, lambda day: {"instructions": f"You are gptme v1.\n**Local date:** {day} UTC", "input": "hi"}, ()),
        (OPENAI, lambda day: chat({"role": "system", "content": f"You are gptme v1.\n**Local date:** {day}"}), ()),
        (ANTHROPIC, lambda day: chat(system=f"You are gptme v1.\n**Local date:** {day}"), (VERSION,)),
        (OPENAI, lambda day: chat(user(f"<current_datetime>{day}</current_datetime>\n\nhi")), ()),
        (
            RESPONSES,
            lambda day: {"input": [user([text_part(f"<current_datetime>{day}</current_datetime>\n\nhi")])]},
            (),
        ),
        (ANTHROPIC, lambda day: chat(user(f"<current_datetime>{day}</current_datetime>\n\nhi")), (VERSION,)),
    ],
)
def test_the_day_that_a_coding_agent_notes_for_itself_is_not_in_the_key(
    to: str, body: Any, headers: tuple[tuple[str, str], ...]
) -> None:
    assert key(to, body("2026-11-26"), *headers) == key(to, body("2026-11-27"), *headers)


@pytest.mark.parametrize(
    ("to", "body"),
    [
        (OPENAI, lambda text: chat(user("hi"), {"role": "tool", "tool_call_id": "c", "content": text})),
        (RESPONSES, lambda text: {"input": [{"type": "function_call_output", "call_id": "c", "output": text}]}),
        (ANTHROPIC, lambda text: chat(user([{"type": "tool_result", "tool_use_id": "c", "content": text}]))),
        (
            ANTHROPIC,
            lambda text: chat(
                user([{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": text}]}])
            ),
        ),
    ],
)
def test_the_number_of_a_shell_of_copilot_is_not_in_the_key_and_its_exit_code_is(to: str, body: Any) -> None:
    """It numbers shells as they begin, which may be at once."""
    text = "one\n<shellId: {} completed with exit code {}>"
    right = key(to, body(text.format(0, 0)))
    assert key(to, body(text.format(1, 0))) == right
    assert key(to, body(text.format(0, 1))) != right
    assert key(to, body("two\n<shellId: 0 completed with exit code 0>")) != right
    # A line that does not go on so counts as it is.
    assert key(to, body("<shellId: 1 is busy>")) != key(to, body("<shellId: 2 is busy>"))


def test_a_line_of_a_shell_that_somebody_writes_is_in_the_key() -> None:
    one, other = (f"<shellId: {number} completed with exit code 0>" for number in (0, 1))
    for to in (OPENAI, ANTHROPIC):
        assert key(to, chat(user(one))) != key(to, chat(user(other)))


def test_a_day_that_somebody_writes_is_in_the_key() -> None:
    for to, headers in ((OPENAI, ()), (ANTHROPIC, (VERSION,))):
        for line in ("Today's date is {}.", "Today's date: {}"):
            one, other = (chat(user(f"Plan it.\n{line.format(day)}")) for day in ("2026-11-26", "2026-11-27"))
            assert key(to, one, *headers) != key(to, other, *headers)


def test_results_of_tools_that_were_called_at_once_count_in_the_order_of_the_calls() -> None:
    def body(*results: tuple[str, str], more: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
        calls: list[dict[str, Any]] = [
            {"type": "tool_use", "id": name, "name": "run", "input": {}} for name in ("toolu_x", "toolu_a", "toolu_m")
        ]
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in results]
        return chat(user("hi"), {"role": "assistant", "content": calls}, user([*blocks, *more]), max_tokens=1)

    one, two, three = ("toolu_x", "1"), ("toolu_a", "2"), ("toolu_m", "3")
    called = key(ANTHROPIC, body(one, two, three), VERSION)
    assert key(ANTHROPIC, body(three, one, two), VERSION) == called
    assert [
        (made.pointer, made.rule) for made in explained_key(ANTHROPIC, body(two, one), VERSION).normalized_fields
    ] == [("/body/messages/2/content", "answers")]
    assert key(ANTHROPIC, body(("toolu_x", "2"), ("toolu_a", "1"), three), VERSION) != called
    # What is between two results parts them, and what answers no call stays where it is.
    said: dict[str, Any] = {"type": "text", "text": "said"}
    apart = {"type": "tool_result", "tool_use_id": "toolu_x", "content": "1"}
    assert key(ANTHROPIC, body(two, more=(said, apart)), VERSION) != key(
        ANTHROPIC, body(one, two, more=(said,)), VERSION
    )
    unknown = [body(("toolu_1", "1"), ("toolu_2", "2")), body(("toolu_2", "2"), ("toolu_1", "1"))]
    assert key(ANTHROPIC, unknown[0], VERSION) != key(ANTHROPIC, unknown[1], VERSION)


def test_the_ids_and_times_of_claude_code_s_subagents_are_not_in_the_key() -> None:
    def body(agent: str, duration: int, result: str = "done") -> dict[str, Any]:
        left = f"agentId: {agent} (use SendMessage with to: '{agent}')\n<usage>subagent_tokens: 9\nduration_ms: {duration}</usage>"
        content = [{"type": "text", "text": result}, {"type": "text", "text": left}]
        return chat(user([{"type": "tool_result", "tool_use_id": "toolu_1", "content": content}]), max_tokens=1)

    assert key(ANTHROPIC, body("a1", 7), VERSION) == key(ANTHROPIC, body("b2", 93), VERSION)
    assert key(ANTHROPIC, body("a1", 7), VERSION) != key(ANTHROPIC, body("a1", 7, "failed"), VERSION)


def test_what_codex_notes_beside_its_messages_is_not_in_the_key() -> None:
    def body(number: int, text: str = "hi", tool: str = "exec") -> dict[str, Any]:
        tools = {"type": "additional_tools", "id": f"at_{number}", "role": "developer", "tools": [{"name": tool}]}
        noted = {"turn_id": f"t{number}", "create_time": 1795731345.3 + number}
        message: dict[str, Any] = {"type": "message", "id": f"msg_{number}", "role": "user", "content": text}
        message["internal_chat_message_metadata_passthrough"] = noted
        return {"model": "m", "input": [tools, message], "client_metadata": {"turn_id": f"t{number}"}}

    assert key(RESPONSES, body(1)) == key(RESPONSES, body(2))
    assert not explained_key(RESPONSES, body(1)).warnings
    assert key(RESPONSES, body(1)) != key(RESPONSES, body(1, text="ho"))
    assert key(RESPONSES, body(1)) != key(RESPONSES, body(1, tool="shell"))


@pytest.mark.parametrize(
    "output",
    [
        "Chunk ID: {0}b2\nWall time: 0.{0} seconds\nProcess exited with code 0\nOutput:\n",
        "Exit code: 0\nWall time: {0} seconds\nOutput:\n",
        [{"type": "input_text", "text": "Script completed\nWall time 0.{0} seconds\nOutput:\n"}],
    ],
)
def test_how_long_a_tool_of_codex_took_is_not_in_the_key(output: Any) -> None:
    def body(text: str) -> bytes:
        item = {"type": "custom_tool_call_output", "call_id": "c", "output": output}
        return json.dumps({"model": "m", "input": [item]}).replace("{0}", "7").replace("Output:", text).encode()

    def took(seconds: str, text: str = "Output:") -> bytes:
        return (
            body(text).replace(b"7b2", seconds.encode() + b"b2").replace(b"7 seconds", seconds.encode() + b" seconds")
        )

    assert took("1") != took("2")
    assert key(RESPONSES, took("1")) == key(RESPONSES, took("2"))
    assert key(RESPONSES, took("1")) != key(RESPONSES, took("1", "Output: x"))
    assert key(RESPONSES, body("Exit code: 0\\nOutput:")) != key(RESPONSES, body("Exit code: 1\\nOutput:"))


def test_feature_flags_are_those_that_were_recorded_whoever_asks() -> None:
    def body(session: str, **more: object) -> dict[str, Any]:
        return {"attributes": {"sessionId": session}, "forcedVariations": {}, "forcedFeatures": [], "url": ""} | more

    url = "https://api.anthropic.com/api/eval/sdk-zAZe"
    assert key(url, body("one")) == key(url, body("two"))
    assert key(url, body("one")) != key(url, body("one", forcedFeatures=[["a", True]]))
    assert key(url, body("one")) != key(url + "x", body("one"))


def test_14b_what_a_user_writes_is_never_a_nonce() -> None:
    assert key(OPENAI, chat(user(BILLING.format(1, 1)))) != key(OPENAI, chat(user(BILLING.format(2, 2))))
    assert key(ANTHROPIC, chat(user(BILLING.format(1, 1)))) != key(ANTHROPIC, chat(user(BILLING.format(2, 2))))
