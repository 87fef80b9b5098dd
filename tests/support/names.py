"""Find names that are bare participles: `told` and `settled` do not say what a function does or returns."""

import ast
import re
from collections.abc import Iterator
from typing import Final

_IRREGULAR: Final = frozenset(
    """
    begun bent bound bought broken brought built caught chosen come dealt done drawn driven due eaten fallen fed felt flown
    forgotten found frozen given gone grown heard held hidden hung kept known lacking laid lain led left lent lost made meant met
    missing paid said seen sent shown sold sought spent spoken spun stolen struck stuck sung sunk swept sworn taken taught thought
    thrown told torn understood undone woken won worn wound written
    """.split()  # noqa: SIM905 - a line a word would be long
)
"""Forms that are no verb's base form: `read`, `put`, `cut`, `split` and `run` are names for what reads, puts, cuts, splits and runs."""

_NOT_PARTICIPLES: Final = frozenset(
    ("embed", "exceed", "feed", "need", "proceed", "red", "seed", "shed", "speed", "succeed")
)


def is_bare_participle(name: str) -> bool:
    """Whether a name is a single word, and a participle."""
    if re.search("[a-z][A-Z]", name):
        return False
    word = name.strip("_").lower()
    return word in _IRREGULAR or (
        word.endswith("ed") and word.isalpha() and word not in _NOT_PARTICIPLES and len(word) > 3
    )


_POSSIBLE = re.compile(
    r"\b(?:asked|begun|ended|gone|given|heard|held|kept|left|lost|made|meant|named|needed|said|seen|sent|shown|taken|told|wanted)"
    r"\b(?=\s*(?:=(?!=)|:|,|\)|in\b))"
)
"""The participles that many variables had as names, where one may be bound. To parse all files takes four seconds."""


def variables_with_participles(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines and names of the variables and arguments that are one of these participles; `left` may be beside `right`.

    Fields of classes are the names of documents.
    """
    words = set(_POSSIBLE.findall(text))
    if re.search(r"\bright\b", text):
        words.discard("left")
    if words:
        yield from (place for place in _bound_names(ast.parse(text)) if place[1].strip("_") in words)


def _bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    fields = {
        id(one) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in _assigned_names(node.body)
    }
    for node in ast.walk(tree):
        match node:
            case ast.arg(arg=str(name)):
                yield node.lineno, name
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                yield node.lineno, name
            case ast.Name(id=str(name), ctx=ast.Store()) if id(node) not in fields:
                yield node.lineno, name
            case _:
                pass


def _assigned_names(body: list[ast.stmt]) -> Iterator[ast.expr]:
    for statement in body:
        if isinstance(statement, ast.AnnAssign):
            yield statement.target
        elif isinstance(statement, ast.Assign):
            yield from statement.targets
