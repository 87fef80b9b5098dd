import pytest
from msgspec.structs import replace

from calls.model import Call, Json, ToolCall
from calls.redaction.call import clean_call
from calls.redaction.redactor import Redactor
from tests.calls.secrets import KEY, TOKENS

CLEAN = Redactor(key=KEY).redact_text


def call(text: str, answer: Json = None, arguments: Json = None) -> Call:
    made = Call(
        exchanges=("x",),
        kind="model",
        provider="openai",
        dialect="openai_chat",
        operation="chat",
        key="",
        profile="",
        streamed=True,
    )
    return replace(made, text=text, answer=answer, tool_calls=(ToolCall(id="1", name="f", arguments=arguments),))


@pytest.mark.parametrize("token", TOKENS[:3])
def test_what_was_put_together_is_searched_again(token: str) -> None:
    said = f"the key is {token}, keep it"
    found = clean_call(call(said, {"choices": [{"content": said}]}, {"keys": [said, 7]}), CLEAN)
    assert token not in repr(found)
    assert found.text == CLEAN(said)
    assert found.answer == {"choices": [{"content": CLEAN(said)}]}
    assert found.tool_calls[0].arguments == {"keys": [CLEAN(said), 7]}


def test_what_holds_no_secret_is_the_same_call() -> None:
    one = call("nothing to hide", {"n": 1.5}, "text")
    assert clean_call(one, CLEAN) is one


def test_the_same_call_always_gives_the_same() -> None:
    one = clean_call(call(f"a {TOKENS[0]}"), CLEAN)
    assert clean_call(one, CLEAN) == one
