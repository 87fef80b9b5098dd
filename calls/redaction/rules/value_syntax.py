"""What stands between a name and its value, and where the value ends: in JSON, code, forms, XML and prose."""

from calls.redaction.rules.patterns import Either, Some, Word
from calls.redaction.rules.secret_rule import End, quoted_end, run

GAP = Some("\\s", 0, 4)
QUOTE = (Some("\\\\", 0, 7), Some("[\"']", 1, 1))
MAYBE_QUOTE = (Some("\\\\", 0, 7), Some("[\"']", 0, 1))
IS = (GAP, Some("[:=]", 1, 1), GAP)
PART_OF_A_FORM = (Word(('"\r\n\r\n',)),)
ELEMENT = (Some("[>]", 1, 1),)
ELEMENT_WITH_ATTRIBUTES = (Some("\\s", 1, 1), Some("[^<>{}]", 1, 40), Some("[>]", 1, 1))
ARROW = (*MAYBE_QUOTE, GAP, Word(("=>", ":=", "==", "->")), GAP, *MAYBE_QUOTE)
MARKED = (Some("[*`]", 0, 3), GAP, Some("[:=]", 1, 1), Some("[*`\\s]", 0, 6))
PAIR = (*QUOTE, Some("[^{}<>\\[\\]]", 1, 64), Word(("value", "val"), nocase=True), *MAYBE_QUOTE, *IS, *QUOTE)
BESIDE = (*QUOTE, GAP, Word((",",)), GAP, *QUOTE)
PROSE = (
    Some("[*`]", 0, 2),
    Some("[ ]", 1, 2),
    Word(("is", "was", "equals", "will be", "should be", "set to", "changed to", "of")),
    Some("[: ]", 1, 2),
    Some("[\"'`*]", 0, 3),
)
LITERAL = (Either(((Some("[ ]", 1, 4),), (GAP, Word(("(",)), GAP))), *QUOTE)


def named_end(data: bytes, at: int) -> End:
    """A value in quotes ends with them, one in a multipart form with its line, one in XML with its element, any other with
    its word."""
    match data[at - 1 : at]:
        case b'"' | b"'":
            return quoted_end(data, at)
        case b"\n":
            return _LINE(data, at)
        case b">":
            return _CONTENT(data, at)
        case _:
            return word_end


_LINE = run("^\\r\\n")
_CONTENT = run('^<\\r\\n"\\\\')
_VALUE_CHARS = r"^&\s\"'<>\\#;,`(){}|\x1b"
VALUE = run(_VALUE_CHARS)
_VALUE_END = VALUE(b"", 0)


def word_end(data: bytes, at: int) -> int:
    """The end of a value without quotes; the end of a sentence is none of it."""
    stop = _VALUE_END(data, at)
    while stop < len(data) and stop > at and data[stop - 1] in b".!?*:":
        stop -= 1
    return stop


def is_in_query(data: bytes, lead: int) -> bool:
    # An escape before the name, as in `\\u0026sig=`, is part of the lead.
    if data[lead - 1 : lead] in (b"?", b"&", b";") or data[lead : lead + 6] == rb"\u0026":
        return True
    return data[lead : lead + 3] in (b"%26", b"%3F", b"%3f")
