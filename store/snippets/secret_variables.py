"""Name the environment variables that stand for the secrets of an exchange."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from calls.placeholder import PATTERN, PREFIX, placeholder_start

_PLACEHOLDER: Final = re.compile(PATTERN.encode() + rb"\**")

API_KEYS: Final = {
    "alibaba": "DASHSCOPE_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "azure.ai.openai": "AZURE_OPENAI_API_KEY",
    "azure.ai.inference": "AZURE_AI_API_KEY",
    "cohere": "CO_API_KEY",
    "gcp.gemini": "GEMINI_API_KEY",
    "gcp.gen_ai": "GOOGLE_API_KEY",
    "gcp.vertex_ai": "GOOGLE_ACCESS_TOKEN",
    "github": "GITHUB_TOKEN",
    "huggingface": "HF_TOKEN",
    "mistral_ai": "MISTRAL_API_KEY",
    "openai": "OPENAI_API_KEY",
    "replicate": "REPLICATE_API_TOKEN",
    "x_ai": "XAI_API_KEY",
}
"""The variables that the providers' own SDKs read. Others are named after the provider."""

_KEY_HEADERS: Final = frozenset(("authorization", "x-api-key", "api-key", "apikey", "x-goog-api-key"))


class Variable(msgspec.Struct, frozen=True):
    """An environment variable that holds a secret."""

    name: str


class TextSpan(msgspec.Struct, frozen=True):
    """A piece of a text, and where it was."""

    start: int
    end: int
    piece: bytes | Variable


type Pieces = tuple[bytes | Variable, ...]
"""A text in which variables stand for secrets."""


class SecretVariables(msgspec.Struct):
    """The variables of one exchange. Equal secrets have the same one."""

    provider: str
    _by_secret: dict[bytes, Variable] = msgspec.field(default_factory=dict)
    _names: dict[str, None] = msgspec.field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The names in the order of their first use."""
        return list(self._names)

    def for_header(self, name: str, secret: bytes) -> Variable:
        """Return the variable for a secret in a header."""
        return self._variable(secret, self.header_variable(name))

    def split(self, text: bytes, *, name: str = "SECRET", is_numbered: bool = True) -> Pieces:
        """Replace each placeholder in a text. One without a variable gets one of this name."""
        return tuple(span.piece for span in self.split_spans(text, name=name, is_numbered=is_numbered))

    def split_spans(self, text: bytes, *, name: str = "SECRET", is_numbered: bool = True) -> list[TextSpan]:
        """Divide a text into what is sent as it is and its placeholders."""
        return list(self._split(text, name, is_numbered=is_numbered))

    def _split(self, text: bytes, name: str, *, is_numbered: bool) -> Iterator[TextSpan]:
        at = 0
        for found in _PLACEHOLDER.finditer(text) if PREFIX in text else ():
            start, end = placeholder_start(text.decode("latin-1"), found.start(), at), found.end()
            if start > at:
                yield TextSpan(at, start, text[at:start])
            yield TextSpan(start, end, self._variable(text[start:end], name, is_numbered=is_numbered))
            at = end
        if at < len(text):
            yield TextSpan(at, len(text), text[at:])

    def api_key(self) -> str:
        """Return the name of the variable for the provider's key."""
        words = re.sub(r"[^A-Z0-9]+", "_", self.provider.upper()).strip("_")
        known = API_KEYS.get(self.provider)
        return known or (f"{words}_API_KEY" if words and words[0].isalpha() else "API_KEY")

    def header_variable(self, name: str) -> str:
        """Return the name of the variable for a secret in a header."""
        if name.lower() in _KEY_HEADERS:
            return self.api_key()
        words = re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_")
        # Never a name that the shell or a program reads, such as PATH: a header may have any name.
        return words if words.startswith(("X_", "OPENAI_", "ANTHROPIC_")) else f"HEADER_{words}"

    def _variable(self, secret: bytes, name: str, *, is_numbered: bool = False) -> Variable:
        # The letter after the prefix says how the secret was found, and may differ for the same secret.
        identity = secret[len(PREFIX) + 1 :] if secret.startswith(PREFIX) else secret
        variable = self._by_secret.get(identity)
        if variable is None:
            variable = self._by_secret[identity] = Variable(self._unused_name(name, is_numbered=is_numbered))
        self._names[variable.name] = None
        return variable

    def _unused_name(self, name: str, *, is_numbered: bool) -> str:
        known = {one.name for one in self._by_secret.values()}
        if not is_numbered and name not in known:
            return name
        number = 1 if is_numbered else 2
        while f"{name}_{number}" in known:
            number += 1
        return f"{name}_{number}"
