"""Find the members of a message that carry text which may continue in the next one, and their channels.

No dialect is asked: any string may be a piece, but those whose names say that they are ids, types or opaque blobs. Pieces belong
together when they stand under the same names, and the numbers and types around them are the same: `choices` 0 and 1 are two
texts, as are a thought and an answer. Where an entry of a list stands does not matter, only what number it gives itself.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from calls.redaction.streams.json_leaves import Leaf, Path, ancestors

_NUMBERS: Final = frozenset(
    (
        *(b"index", b"output_index", b"content_index", b"summary_index", b"command_index", b"annotation_index"),
        *(b"choice_index", b"contentBlockIndex", b"diff_index"),
    )
)
"""Members that number the texts of one message."""

_KINDS: Final = frozenset((b"type", b"event_type", b"event", b"kind"))
"""Members that say what kind of text it is."""

_SAME_KIND: Final = frozenset((b"function", b"message", b"assistant"))
"""Kinds that some servers only name with the first piece."""

_NAMES: Final = frozenset((b"stream_id", b"response_id", b"toolCallId", b"artifactId"))
"""Members that name one of several texts at a time; an `id` does where it stands beside a `delta`."""

_NO_TEXT: Final = frozenset(
    (
        *(
            b"id",
            b"object",
            b"model",
            b"role",
            b"created",
            b"created_at",
            b"createTime",
            b"finish_reason",
            b"finishReason",
        ),
        *(
            b"stop_reason",
            b"system_fingerprint",
            b"obfuscation",
            b"p",
            b"status",
            b"service_tier",
            b"signature",
            b"name",
        ),
        *(
            b"thoughtSignature",
            b"encrypted_content",
            b"redactedContent",
            b"modelVersion",
            b"jsonrpc",
            b"phase",
            b"state",
        ),
        *(b"mimeType", b"mime_type", b"bytes", b"b64_json", b"partial_image_b64", b"role", b"version", b"tokens"),
    )
)
_TEXT: Final = frozenset(
    (
        *(
            b"content",
            b"text",
            b"delta",
            b"partial_json",
            b"arguments",
            b"thinking",
            b"reasoning",
            b"reasoning_content",
        ),
        *(
            b"completion",
            b"response",
            b"generation",
            b"outputText",
            b"generated_text",
            b"transcript",
            b"token",
            b"refusal",
        ),
        *(b"input", b"output", b"stringValue", b"message", b"summary", b"code", b"value", b"thought", b"answer"),
        *(b"tool_plan", b"reply", b"parameters", b"data", b"logs", b"stdout", b"stderr", b"command", b"partial"),
    )
)
"""Members of which the next one may well say the same: any other that does is no piece, but says it again."""

_REPEATED: Final = 4
"""From so many bytes on."""

_SOUND: Final = frozenset((b"audio", b"inlineData", b"inline_data", b"input_audio"))


class TextLeaf(NamedTuple):
    """A leaf that carries a piece of a text."""

    leaf: Leaf
    channel: Hashable
    """What of the channel's name is the same for all messages of one shape."""

    names: tuple[Leaf, ...]
    """What of it is not."""

    may_repeat: bool


class MessageLeaves:
    """The leaves of a message, and what each is for."""

    def __init__(self, data: bytes, leaves: Iterable[Leaf]) -> None:
        self._data = data
        self.leaves = tuple(leaves)
        self._paths = {leaf.path for leaf in self.leaves}
        self._marks = self._find_marks()

    def texts(self) -> Iterator[TextLeaf]:
        """The leaves that carry text."""
        for leaf in self.leaves:
            if leaf.is_string and self._may_be_text(leaf):
                yield self._text(leaf)

    def is_fixed(self, leaf: Leaf) -> bool:
        """Whether a message in which it is another is of another shape."""
        name = _name(leaf.path)
        return name in _KINDS or (name in _NUMBERS and leaf in self._marks.get(leaf.path[:-1], ()))

    def value(self, leaf: Leaf) -> bytes:
        """The bytes of a leaf."""
        return self._data[leaf.start : leaf.end]

    def _find_marks(self) -> Mapping[Path, list[Leaf]]:
        """The members that tell texts apart, under the path of what they are members of."""
        found: dict[Path, list[Leaf]] = {}
        for leaf in self.leaves:
            if self._is_mark(leaf):
                found.setdefault(leaf.path[:-1], []).append(leaf)
        return found

    def _is_mark(self, leaf: Leaf) -> bool:
        name = leaf.path[-1] if leaf.path else b""
        if name in _KINDS:
            return leaf.is_string and self.value(leaf) not in _SAME_KIND
        if name in _NUMBERS:
            # Hugging Face's counts the pieces of one text.
            return not any(leaf.path[:-1] == path[:-2] and path[-2:-1] == (b"token",) for path in self._paths)
        return name in _NAMES or (name == b"id" and (*leaf.path[:-1], b"delta") in self._paths)

    def _may_be_text(self, leaf: Leaf) -> bool:
        path = leaf.path
        name = _name(path)
        if name in _NO_TEXT or name in _KINDS or name.endswith((b"_id", b"Id", b"_at")) or b"top_logprobs" in path:
            return False
        if name == b"data" and len(path) > 1 and not _SOUND.isdisjoint(path):
            return False
        return not (name == b"delta" and self._is_sound(path[:-1]))

    def _is_sound(self, parent: Path) -> bool:
        return any(self.value(leaf).endswith(b"audio.delta") for leaf in self._marks.get(parent, ()))

    def _text(self, leaf: Leaf) -> TextLeaf:
        fixed: list[Hashable] = [self._place(leaf.path)]
        names: list[Leaf] = []
        for parent in ancestors(leaf.path):
            for mark in self._marks.get(parent, ()):
                if self.is_fixed(mark):
                    fixed.append((len(parent), _name(mark.path), self.value(mark)))
                else:
                    names.append(mark)
        return TextLeaf(leaf, tuple(fixed), tuple(names), _name(leaf.path) in _TEXT)

    def _place(self, path: Path) -> Path:
        """Where a text stands, whatever entry of a list it is in. Tools that are called without numbers are told by their order."""
        return tuple(
            step if isinstance(step, bytes) or self._is_told_by_order(path[: at + 1]) else b"*"
            for at, step in enumerate(path)
        )

    def _is_told_by_order(self, entry: Path) -> bool:
        marks = self._marks.get(entry, ())
        return entry[-2:-1] == (b"tool_calls",) and all(_name(mark.path) not in _NUMBERS for mark in marks)


def _name(path: Path) -> bytes:
    """The name of a member; that of the list, of what stands in one."""
    return next((step for step in reversed(path) if isinstance(step, bytes)), b"")


def is_repeated(text: bytes, before: bytes | None) -> bool:
    """Whether a member says again what it said in the message before."""
    return text == before and len(text) >= _REPEATED
