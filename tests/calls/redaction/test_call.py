import pytest
from msgspec.structs import replace

from calls.model import Call, Json, ToolCall
from calls.redaction.call import clean_call, clean_member
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


def test_a_value_with_a_name_is_redacted_by_the_name_too() -> None:
    assert clean_member("password", "hunter2hunter2", CLEAN) == CLEAN('{"password":"hunter2hunter2"}')[13:-2]
    assert "hunter2" not in clean_member("db_password", "hunter2hunter2", CLEAN)
    for name, value in (("branch", "main"), ("password", ""), ("a", 'b"c'), ('"', "x"), ("a", "\\")):
        assert clean_member(name, value, CLEAN) == value
