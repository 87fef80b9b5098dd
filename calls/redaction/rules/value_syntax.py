"""The syntax between a name and its value, and the end of the value: in JSON, code, forms, XML and prose."""

import re
from typing import Final

from calls.redaction.rules.patterns import Either, Repeat, Word
from calls.redaction.rules.secret_rule import End, end_of_run, quoted_end

GAP = Repeat("\\s", 0, 4)
QUOTE = (Repeat("\\\\", 0, 7), Repeat("[\"']", 1, 1))
MAYBE_QUOTE = (Repeat("\\\\", 0, 7), Repeat("[\"']", 0, 1))
ASSIGNMENT = (GAP, Repeat("[:=]", 1, 1), GAP)
FORM_PART = (Word(('"\r\n\r\n',)),)
ELEMENT = (Repeat("[>]", 1, 1),)
CDATA = (Word(("><![CDATA[",)),)
PLIST = (Word(("</key>",)), Repeat(r"[\s\\nrt]", 0, 16), Word(("<string>",)))
BRACKETED = (Word(("]=", "%5D=", "%5d=")),)
"""In a form or a query: `user[password]=…`"""

PERCENT_QUOTES: Final = ("%22", "%2522")
QUOTED_IN_URL = (Word(PERCENT_QUOTES), Word((":", ":+", "%3A", "%3a")), Word(PERCENT_QUOTES))
"""JSON in a form or a query: `%22password%22:%22…`"""

ELEMENT_WITH_ATTRIBUTES = (Repeat("\\s", 1, 1), Repeat("[^<>{}]", 1, 40), Repeat("[>]", 1, 1))
ARROW = (*MAYBE_QUOTE, GAP, Word(("=>", ":=", "==", "->")), GAP, *MAYBE_QUOTE)
MARKDOWN = (Repeat("[*`]", 0, 3), GAP, Repeat("[:=]", 1, 1), Repeat("[*`\\s]", 0, 6))
PAIR = (*QUOTE, Repeat("[^{}<>\\[\\]]", 1, 64), Word(("value", "val"), nocase=True), *MAYBE_QUOTE, *ASSIGNMENT, *QUOTE)
NEXT_ITEM = (*QUOTE, GAP, Word((",",)), GAP, *QUOTE)
PROSE = (
    Repeat("[*`]", 0, 2),
    Repeat("[ ]", 1, 2),
    Word(("is", "was", "equals", "will be", "should be", "set to", "changed to", "of", "provided")),
    Repeat("[: ]", 1, 2),
    Repeat("[\"'`*]", 0, 3),
)
LITERAL = (Either(((Repeat("[ ]", 1, 4),), (GAP, Word(("(",)), GAP))), *QUOTE)


def named_end(data: bytes, at: int) -> End:
    """Return the end of a value: the quote, the line in a multipart form, the element in XML, else the end of the word."""
    for quote in _PERCENT_QUOTES:
        if data.endswith(quote, 0, at):
            return _ends_before[quote]
    match data[at - 1 : at]:
        case b'"' | b"'":
            return quoted_end(data, at)
        case b"\n":
            return _LINE(data, at)
        case b">":
            return _CONTENT(data, at)
        case b"[":
            return _CHARACTER_DATA(data, at)
        case _:
            return word_end


_LINE = end_of_run("^\\r\\n")
_CONTENT = end_of_run('^<\\r\\n"\\\\')
_CHARACTER_DATA = end_of_run("^\\]<\\r\\n")
_VALUE_CHARS = r"^&\s\"'<>\\#;,`(){}|\x1b"
VALUE = end_of_run(_VALUE_CHARS)
_VALUE_END = VALUE(b"", 0)


def word_end(data: bytes, at: int) -> int:
    """Return the end of a value without quotes, excluding punctuation at the end of a sentence."""
    stop = _VALUE_END(data, at)
    while stop < len(data) and stop > at and data[stop - 1] in b".!?*:":
        stop -= 1
    return stop


def _end_before(quote: bytes) -> End:
    def end(data: bytes, at: int) -> int:
        found = data.find(quote, at)
        return min(word_end(data, at), found if found >= 0 else len(data))

    return end


_PERCENT_QUOTES: Final = tuple(quote.encode() for quote in reversed(PERCENT_QUOTES))
_ends_before = {quote: _end_before(quote) for quote in _PERCENT_QUOTES}


def is_in_query(data: bytes, lead: int) -> bool:
    # An escape before the name, as in `\\u0026sig=`, belongs to the lead.
    if data[lead - 1 : lead] in (b"?", b"&", b";") or data[lead : lead + 6] == rb"\u0026":
        return True
    return _SEPARATOR.match(data, lead) is not None


_SEPARATOR: Final = re.compile(rb"%(?:25){0,2}(?:26|3[Ff])")
