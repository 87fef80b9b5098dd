"""Each rule, on a run that satisfies it and on one that does not."""

import pytest

from calls.checking.checked_run import CheckedRun
from tests.calls.checking.runs import check, deleting_agent, findings, step, tool, with_step

RIGHT = deleting_agent()
WRONG = deleting_agent("R-99")


@pytest.mark.parametrize(
    ("rule", "broken"),
    [
        ('kind = "tools"\ntools = ["find_record", "delete_record"]', []),
        ('kind = "tools"\ntools = ["find_*", "delete_record"]', []),
        (
            'kind = "tools"\ntools = ["delete_record", "find_record"]',
            [(1, "tool call 1 is find_record, expected delete_record")],
        ),
        (
            'kind = "tools"\ntools = ["find_record"]',
            [(3, "delete_record is requested after the 1 expected tool calls")],
        ),
        (
            'kind = "tools"\ntools = ["find_record", "delete_record", "log"]',
            [(None, "log is not requested: only find_record, delete_record")],
        ),
        ('kind = "tools"\norder = "relative"\ntools = ["delete_record"]', []),
        (
            'kind = "tools"\norder = "relative"\ntools = ["delete_record", "find_record"]',
            [(None, "find_record is not requested after delete_record: requested are find_record, delete_record")],
        ),
        ('kind = "tools"\norder = "any"\ntools = ["delete_record", "find_record"]', []),
        (
            'kind = "tools"\norder = "any"\ntools = ["find_record", "log"]',
            [(3, "delete_record is requested, which is not one of find_record, log"), (None, "log is not requested")],
        ),
        ('kind = "forbid"\ntools = ["drop_*"]', []),
        ('kind = "forbid"\ntools = ["delete_*"]', [(3, "delete_record is forbidden by delete_*")]),
        ('kind = "forbid"\nmethods = ["DELETE"]\nhosts = ["*.bank.example"]', []),
        (
            'kind = "forbid"\nmethods = ["DELETE"]\nhosts = ["CRM.example.com"]',
            [(4, "DELETE crm.example.com/records/R-17 is forbidden by DELETE CRM.example.com")],
        ),
        ('kind = "only"\nhosts = ["api.openai.com", "crm.example.com"]\nmodels = ["gpt-*"]', []),
        ('kind = "only"\ntools = ["find_record"]', [(3, "delete_record is requested; allowed are find_record")]),
        (
            'kind = "only"\nhosts = ["api.openai.com"]',
            [
                (2, "GET crm.example.com/records is called; allowed hosts are api.openai.com"),
                (4, "DELETE crm.example.com/records/R-17 is called; allowed hosts are api.openai.com"),
            ],
        ),
        ('kind = "require"\ntools = ["find_record"]', []),
        ('kind = "require"\nmodels = ["gpt-5"]\nmin = 3\nmax = 3', []),
        ('kind = "require"\ntools = ["ask_user"]', [(None, "ask_user occurs 0 times, at least 1 expected")]),
        (
            'kind = "require"\nmodels = ["gpt-5"]\nmax = 2',
            [(5, "gpt-5 occurs 3 times, at most 2 expected")],
        ),
        ('kind = "argument"\ntool = "delete_record"\nat = "$.id"\nis = { pattern = "R-[0-9]+", type = "string" }', []),
        ('kind = "argument"\ntool = "delete_record"\nat = "$.dry_run"\noptional = true\nis = { equals = true }', []),
        (
            'kind = "argument"\ntool = "delete_record"\nat = "$.reason"',
            [(3, 'delete_record has no $.reason: its arguments are {"id":"R-17","force":true}')],
        ),
        (
            'kind = "argument"\ntool = "delete_record"\nat = "$.force"\nis = { equals = false }',
            [(3, "delete_record/force is true, which is not false")],
        ),
        ('kind = "target"\ntools = ["delete_*"]\nat = "$.id"\nallow = ["R-1?"]', []),
        (
            'kind = "target"\ntools = ["delete_*"]\nat = "$.id"\nallow = ["R-2?", "R-3?"]',
            [(3, 'delete_record/id is "R-17"; allowed are R-2?, R-3?')],
        ),
        ('kind = "target"\nallow = ["DELETE crm.example.com/records/*"]', []),
        (
            'kind = "target"\nallow = ["DELETE crm.example.com/notes/*"]',
            [(4, "DELETE crm.example.com/records/R-17 is not an allowed target: DELETE crm.example.com/notes/*")],
        ),
        ('kind = "budget"\nmax_cost_usd = 0.03\nmax_input_tokens = 300\nmax_steps = 5\nmax_seconds = 5', []),
        ('kind = "budget"\nmax_cost_usd = 0.02', [(5, "the cost up to here is 0.03 USD, at most 0.02 allowed")]),
        (
            'kind = "budget"\nmax_output_tokens = 15',
            [(3, "the output tokens up to here is 20 tokens, at most 15 allowed")],
        ),
        ('kind = "budget"\nmax_seconds = 4', [(None, "the run took 4.5 s, at most 4 s allowed")]),
        ('kind = "budget"\nmax_steps = 4', [(5, "the run has 5 steps, at most 4 allowed")]),
    ],
)
def test_a_rule_says_what_is_broken_and_where(rule: str, broken: list[tuple[int | None, str]]) -> None:
    assert findings(RIGHT, rule) == broken


def test_a_destructive_call_on_another_record_breaks_its_target() -> None:
    spec = '[[rule]]\nkind = "target"\ntools = ["delete_*"]\nat = "$.id"\nallow = ["R-17"]'
    assert check(RIGHT, spec).verdict == "pass"
    assert check(WRONG, spec).verdict == "fail"


def test_a_target_that_a_call_does_not_name_is_broken() -> None:
    run = with_step(RIGHT, 3, call={"tool_calls": (tool("delete_record", {"all": True}),)})
    rule = 'kind = "target"\ntools = ["delete_*"]\nat = "$.id"\nallow = ["*"]'
    assert findings(run, rule) == [(3, "delete_record names no target at $.id")]


def test_calls_that_only_read_have_no_target() -> None:
    run = with_step(RIGHT, 4, is_unsafe=False)
    assert findings(run, 'kind = "target"\nallow = ["nothing"]') == []


def test_a_cost_that_is_not_known_decides_nothing_unless_the_rest_is_too_much() -> None:
    run = with_step(RIGHT, 1, usd=None)
    report = check(run, '[[rule]]\nkind = "budget"\nmax_cost_usd = 0.02')
    assert report.verdict == "unknown"
    assert [one.step for one in report.rules[0].findings] == [1]
    assert check(run, '[[rule]]\nkind = "budget"\nmax_cost_usd = 0.01').verdict == "fail"


def test_tokens_of_calls_that_failed_are_not_missing() -> None:
    run = CheckedRun(
        "r", (*RIGHT.steps, with_step(RIGHT, 5, status=500, call={"usage": RIGHT.steps[1].call.usage}).steps[4])
    )
    assert check(run, '[[rule]]\nkind = "budget"\nmax_input_tokens = 1000').verdict == "pass"


def test_a_tool_that_a_model_requests_and_the_agent_calls_counts_once() -> None:
    again = step(6, "tool", call={"tool_calls": (tool("delete_record", {"id": "R-17", "force": True}, "mcp-1"),)})
    run = CheckedRun("r", (*RIGHT.steps, again))
    assert [one.name for one in run.tools] == ["find_record", "delete_record"]
    assert [one.name for one in CheckedRun("r", (*run.steps, again)).tools] == [
        "find_record",
        "delete_record",
        "delete_record",
    ]
