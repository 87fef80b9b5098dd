"""Find the members of a message that carry text which may continue in the next one, and their channels.

The rules are independent of the dialect: any string may be a piece, except those named as ids, types or opaque blobs. Pieces
belong together if they are under the same names and the numbers and types around them are the same: `choices` 0 and 1 are two
texts, as are a thought and an answer. The position of an entry in a list does not matter, only its own number.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from calls.redaction.streams.json_leaves import Leaf, Path, ancestor_paths

_NUMBERS: Final = frozenset(
    (
        *(b"index", b"output_index", b"content_index", b"summary_index", b"command_index", b"annotation_index"),
        *(b"choice_index", b"contentBlockIndex", b"diff_index"),
    )
)
"""Members that number the texts of one message."""

_KINDS: Final = frozenset((b"type", b"event_type", b"event", b"kind"))
"""Members with the kind of a text."""

_SAME_KIND: Final = frozenset((b"function", b"message", b"assistant"))
"""Kinds that some servers send only with the first piece."""

_NAMES: Final = frozenset((b"stream_id", b"response_id", b"toolCallId", b"artifactId"))
"""Members that identify one of several concurrent texts; an `id` does so next to a `delta`."""

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
"""Members of text that may have equal consecutive pieces; in any other member, an equal value is a repetition, not a piece."""

_MIN_REPEATED: Final = 4
"""The fewest bytes of a value that counts as a repetition."""

_SOUND: Final = frozenset((b"audio", b"inlineData", b"inline_data", b"input_audio"))


class TextLeaf(NamedTuple):
    """A leaf that carries a piece of a text."""

    leaf: Leaf
    channel: Hashable
    """The part of the channel's name that is the same for all messages of one shape."""

    names: tuple[Leaf, ...]
    """The leaves with the part of the channel's name that differs between messages."""

    may_repeat: bool


class MessageLeaves:
    """The leaves of a message and their roles."""

    def __init__(self, data: bytes, leaves: Iterable[Leaf]) -> None:
        self._data = data
        self.leaves = tuple(leaves)
        self._paths = {leaf.path for leaf in self.leaves}
        self._marks = self._find_marks()

    def text_leaves(self) -> Iterator[TextLeaf]:
        """Yield the leaves that carry text."""
        for leaf in self.leaves:
            if leaf.is_string and self._can_be_text(leaf):
                yield self._text_leaf(leaf)

    def is_fixed(self, leaf: Leaf) -> bool:
        """Whether the leaf's value is part of the message's shape."""
        name = _member_name(leaf.path)
        return name in _KINDS or (name in _NUMBERS and leaf in self._marks.get(leaf.path[:-1], ()))

    def value(self, leaf: Leaf) -> bytes:
        """Return the bytes of a leaf."""
        return self._data[leaf.start : leaf.end]

    def _find_marks(self) -> Mapping[Path, list[Leaf]]:
        """Return the members that distinguish texts, by the path of their object."""
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
            # Hugging Face's index counts the pieces of one text.
            return not any(leaf.path[:-1] == path[:-2] and path[-2:-1] == (b"token",) for path in self._paths)
        return name in _NAMES or (name == b"id" and (*leaf.path[:-1], b"delta") in self._paths)

    def _can_be_text(self, leaf: Leaf) -> bool:
        path = leaf.path
        name = _member_name(path)
        if name in _NO_TEXT or name in _KINDS or name.endswith((b"_id", b"Id", b"_at")) or b"top_logprobs" in path:
            return False
        if name == b"data" and len(path) > 1 and not _SOUND.isdisjoint(path):
            return False
        return not (name == b"delta" and self._is_sound(path[:-1]))

    def _is_sound(self, parent: Path) -> bool:
        return any(self.value(leaf).endswith(b"audio.delta") for leaf in self._marks.get(parent, ()))

    def _text_leaf(self, leaf: Leaf) -> TextLeaf:
        fixed: list[Hashable] = [self._channel_path(leaf.path)]
        names: list[Leaf] = []
        for parent in ancestor_paths(leaf.path):
            for mark in self._marks.get(parent, ()):
                if self.is_fixed(mark):
                    fixed.append((len(parent), _member_name(mark.path), self.value(mark)))
                else:
                    names.append(mark)
        return TextLeaf(leaf, tuple(fixed), tuple(names), _member_name(leaf.path) in _TEXT)

    def _channel_path(self, path: Path) -> Path:
        """Return the path of a text without its list indexes, except for tool calls that have no number of their own."""
        return tuple(
            step if isinstance(step, bytes) or self._is_ordered_entry(path[: at + 1]) else b"*"
            for at, step in enumerate(path)
        )

    def _is_ordered_entry(self, entry: Path) -> bool:
        marks = self._marks.get(entry, ())
        return entry[-2:-1] == (b"tool_calls",) and all(_member_name(mark.path) not in _NUMBERS for mark in marks)


def _member_name(path: Path) -> bytes:
    """Return the name of the member; for a list element, the name of the list."""
    return next((step for step in reversed(path) if isinstance(step, bytes)), b"")


def is_repeated(text: bytes, before: bytes | None) -> bool:
    """Return whether a member repeats its value from the previous message."""
    return text == before and len(text) >= _MIN_REPEATED
