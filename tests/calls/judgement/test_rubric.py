"""A rubric is read, or refused with its line."""

import re
from pathlib import Path

import pytest

from calls.judgement.rubric import BadRubric, parse_rubric


def test_criteria_are_read_in_order() -> None:
    text = '[[criterion]]\nname = "a"\nquestion = "Is it?"\n[[criterion]]\nname = "b"\nquestion = "Was it?"\n'
    assert [(one.name, one.question) for one in parse_rubric(text)] == [("a", "Is it?"), ("b", "Was it?")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no criteria"),
        ("x = 1", "unknown 'x'"),
        ("[[criterion", "invalid TOML"),
        ("\n[[criterion]]\nname = 'a'", "line 2: Object missing required field `question`"),
        ("[[criterion]]\nname = 'a'\nquestion = ' '", "line 1: a name has 1 to 80"),
        ("[[criterion]]\nname = 'a'\nquestion = 'x'\nweight = 2", "line 1: Object contains unknown field `weight`"),
        (
            "[[criterion]]\nname='a'\nquestion='x'\n[[criterion]]\nname='a'\nquestion='y'",
            "two criteria have the name 'a'",
        ),
        ("[[criterion]]\nname='a'\nquestion='x'\n" * 51, "it has 51 criteria"),
    ],
)
def test_a_mistake_is_named(text: str, message: str) -> None:
    with pytest.raises(BadRubric) as raised:
        parse_rubric(text)
    assert message in str(raised.value)


def test_the_rubric_that_the_docs_show_is_valid() -> None:
    page = (Path(__file__).parents[3] / "docs" / "judge.md").read_text("utf-8")
    [block] = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(parse_rubric(block)) == 2
