"""Rules on what was said: answers, secrets, documents, and values that come from elsewhere in the run."""

import pytest

from calls.checking.checked_run import CheckedRun
from tests.calls.checking.runs import deleting_agent, findings, step, tool, with_step

RIGHT = deleting_agent()
WRONG = deleting_agent("R-99")
USER_NAMED = 'kind = "same"\ntool = "delete_*"\nat = "$.id"\nsource = { user = "R-[0-9]+" }'
WAS_FOUND = (
    'kind = "same"\ntool = "delete_*"\nat = "$.id"\nsource = { result_of = "find_record", at = "$.items[*].id" }'
)


def test_the_record_that_is_deleted_is_the_one_that_the_user_named() -> None:
    assert findings(RIGHT, USER_NAMED) == []
    assert findings(WRONG, USER_NAMED) == [(3, 'delete_record/id is "R-99", but the user\'s text has "R-17"')]


def test_the_record_that_is_deleted_is_one_that_was_found() -> None:
    assert findings(RIGHT, WAS_FOUND) == []
    assert findings(WRONG, WAS_FOUND) == [
        (3, 'delete_record/id is "R-99", but $.items[*].id in the result of find_record has "R-17"')
    ]


@pytest.mark.parametrize(
    "content",
    [
        '{"items": [{"id": "R-17"}]}',
        [{"type": "text", "text": '{"items": [{"id": "R-17"}]}'}],
        {"items": [{"id": "R-17"}]},
        {"content": [{"type": "text", "text": '{"items": [{"id": "R-17"}]}'}]},
    ],
    ids=["text", "blocks", "object", "mcp"],
)
def test_results_are_read_in_the_forms_that_apis_give_them(content: object) -> None:
    run = with_step(RIGHT, 3, call={"tool_results": ({"id": "find_record-1", "content": content},)})
    assert findings(run, WAS_FOUND) == []


def test_a_result_that_comes_after_the_call_is_no_source_of_it() -> None:
    late = RIGHT.steps[2].call.tool_results
    run = with_step(with_step(RIGHT, 3, call={"tool_results": ()}), 5, call={"tool_results": late})
    assert findings(run, WAS_FOUND) == [
        (3, 'delete_record/id is "R-17", but $.items[*].id in the result of find_record has no value yet')
    ]


def test_the_result_of_a_tool_that_the_agent_called_itself_is_its_answer() -> None:
    calls = {"tool_calls": (tool("find_record", {"query": "x"}, "m"),), "answer": {"items": [{"id": "R-17"}]}}
    run = CheckedRun("r", (step(1, "tool", call=calls), *RIGHT.steps[2:]))
    assert findings(run, WAS_FOUND) == []


def test_a_number_is_the_same_as_its_digits() -> None:
    run = deleting_agent(17, user="delete 17")  # type: ignore[arg-type] # models write either
    assert findings(run, 'kind = "same"\ntool = "delete_*"\nat = "$.id"\nsource = { user = "[0-9]+" }') == []


def test_texts_of_tools_in_messages_of_the_user_are_not_the_user_s() -> None:
    block = {"type": "tool_result", "tool_use_id": "x", "content": "R-99"}
    messages = [{"role": "user", "content": [block, {"type": "text", "text": "Please delete R-17"}]}]
    run = with_step(WRONG, 1, call={"request": {"messages": messages}})
    assert run.user_texts == ("Please delete R-17",)


@pytest.mark.parametrize(
    ("request_body", "texts"),
    [
        ({"input": "hello"}, ("hello",)),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]}, ("hello",)),
        (
            {
                "contents": [
                    {"role": "user", "parts": [{"text": "hello"}]},
                    {"role": "model", "parts": [{"text": "no"}]},
                ]
            },
            ("hello",),
        ),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]}, ("a", "b")),
        ({"prompt": "hello"}, ("hello",)),
        ({"messages": "no list"}, ()),
        (["no object"], ()),
        (None, ()),
    ],
)
def test_the_user_s_texts_are_found_in_requests_of_every_form(request_body: object, texts: tuple[str, ...]) -> None:
    assert CheckedRun("r", (step(1, call={"request": request_body}),)).user_texts == texts


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ('contains = ["R-17"]', []),
        ('contains = ["R-18"]', ['the answer does not contain "R-18": it is "Deleted R-17 [doc-1]."']),
        ('pattern = "R-[0-9]+"', []),
        ('pattern = "^R-"', ["the answer does not match '^R-': it is \"Deleted R-17 [doc-1].\""]),
        ('forbidden_pattern = "(?i)deleted R"', ["the answer contains \"Deleted R\", which matches '(?i)deleted R'"]),
        ('schema = { type = "object" }', ['the answer is not JSON: it is "Deleted R-17 [doc-1]."']),
    ],
)
def test_the_last_answer(rule: str, broken: list[str]) -> None:
    prefix = "POST api.openai.com/v1/chat/completions (gpt-5): "
    assert findings(RIGHT, f'kind = "answer"\n{rule}') == [(5, prefix + words) for words in broken]


def test_a_structured_answer_satisfies_its_schema_or_says_where_not() -> None:
    rule = 'kind = "answer"\nschema = { type = "object", required = ["id"], properties = { id = { type = "string" } } }'
    for text, broken in (
        ('{"id": "R-1"}', None),
        ('{"id": 1}', "$.id: 1 is not of type 'string'"),
        ("{}", "'id' is a required property"),
    ):
        found = findings(with_step(RIGHT, 5, call={"text": text}), rule)
        assert [step for step, _ in found] == ([] if broken is None else [5])
        assert broken is None or broken in found[0][1]


@pytest.mark.parametrize("reference", ["#", "#/$defs/missing"])
def test_a_schema_whose_references_lead_nowhere_says_so(reference: str) -> None:
    rule = f'kind = "answer"\nschema = {{ "$ref" = "{reference}" }}'
    [(_, message)] = findings(with_step(RIGHT, 5, call={"text": "{}"}), rule)
    assert message.endswith("the schema has a reference that leads nowhere, or to itself")


def test_a_run_without_a_final_answer_has_none_to_check() -> None:
    run = CheckedRun("r", RIGHT.steps[:4])
    assert findings(run, 'kind = "answer"\ncontains = ["x"]') == [(None, "no model gave a final answer")]


def test_a_placeholder_of_redaction_in_a_prompt_is_a_secret() -> None:
    assert findings(RIGHT, 'kind = "no-secret"') == []
    run = with_step(RIGHT, 3, call={"request": {"messages": [{"role": "user", "content": "key PLAYHEAD_KABCDEFGHIJ"}]}})
    assert findings(run, 'kind = "no-secret"') == [
        (3, "the prompt of POST api.openai.com/v1/chat/completions (gpt-5) has a secret at /messages/0/content")
    ]
    assert [at for at, _ in findings(RIGHT, 'kind = "no-secret"\npatterns = ["R-\\\\d+"]')] == [1, 3, 5]


def test_a_document_was_retrieved() -> None:
    assert findings(RIGHT, 'kind = "retrieved"\ndocument = "R-17"') == []
    assert findings(RIGHT, 'kind = "retrieved"\ndocument = "R-1*"\nat = "$.items[*].id"\ntools = ["find_*"]') == []
    assert findings(RIGHT, 'kind = "retrieved"\ndocument = "R-18"') == [
        (None, "R-18 was not retrieved; retrieved were R-17, Ann")
    ]
    store = step(2, "retrieval", call={"answer": {"matches": [{"id": "doc-9"}]}})
    assert findings(CheckedRun("r", (store,)), 'kind = "retrieved"\ndocument = "doc-9"') == []


def test_what_an_answer_cites_was_retrieved_before() -> None:
    rule = 'kind = "grounded"\ncitation = "\\\\[(doc-[0-9]+)\\\\]"'
    assert findings(RIGHT, rule) == [(5, "the answer cites doc-1, which was not retrieved before")]
    store = step(2, "retrieval", call={"answer": {"matches": [{"id": "doc-1"}]}})
    assert findings(CheckedRun("r", (store, *RIGHT.steps[2:])), rule) == []
    assert findings(with_step(RIGHT, 5, call={"text": "Done."}), rule) == [
        (5, "the last answer has 0 citations, at least 1 expected")
    ]
