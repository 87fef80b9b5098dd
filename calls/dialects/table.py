"""The dialects, in the order in which they are asked whether a request is theirs."""

from typing import Final

from calls.dialects import Claim, Dialect, anthropic, gemini, generic, openai_chat, openai_responses

DIALECTS: Final[tuple[Dialect, ...]] = (
    openai_chat,
    openai_responses,
    anthropic,
    gemini,
    generic,
)

GENERIC: Final = Claim(dialect=generic.NAME, operation=generic.OPERATION, kind=None)

BY_NAME: Final = {dialect.NAME: dialect for dialect in DIALECTS}
