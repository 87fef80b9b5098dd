import re

from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.heads import HEAD_BYTES, HEAD_LINES, fields_fault, http1_head_fault

TOKEN = st.text("abcXYZ019-_!~", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=40)
HEAD = st.builds(
    lambda method, path, fields: (
        "\r\n".join([f"{method} /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]).encode("latin-1")
        + b"\r\n\r\n"
    ),
    TOKEN,
    TOKEN,
    st.lists(st.tuples(TOKEN, VALUE), max_size=8),
)


@given(HEAD, st.binary(max_size=40))
def test_a_sound_head_is_sound_whatever_follows(head: bytes, body: bytes) -> None:
    assert http1_head_fault(head + body) is None


@given(HEAD, st.data())
def test_however_a_sound_head_is_cut_it_is_not_refused(head: bytes, data: st.DataObject) -> None:
    assert http1_head_fault(head[: data.draw(st.integers(0, len(head)))]) is None


@given(HEAD, st.sampled_from([b"\0", b"\r", b"\n", b"\r\n ", b"\r\n\t", b"\rX: y", b"\n\r"]), st.data())
def test_what_could_split_a_head_is_refused_wherever_it_stands(head: bytes, bad: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(1, len(head) - 5))
    broken = head[:at] + bad + head[at:]
    # The change may have produced another valid head: with an earlier end, or another line end.
    lines = re.split(rb"\r?\n\r?\n", broken)[0].replace(b"\r\n", b"|")
    if any(mark in lines for mark in (b"\0", b"\r", b"\n", b"| ", b"|\t")):
        assert http1_head_fault(broken) is not None


def test_a_head_is_refused_while_it_grows() -> None:
    fault = http1_head_fault(b"GET / HTTP/1.1\r\nX: " + b"a" * HEAD_BYTES)
    assert fault is not None
    assert fault.status == 431
    many = http1_head_fault(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (HEAD_LINES + 1))
    assert many is not None
    assert many.status == 431


def test_another_version_of_http_is_refused() -> None:
    for line in (b"GET / HTTP/2.0", b"PRI * HTTP/2.0", b"GET / HTTP/1.2", b"GET / HTTP/0.9"):
        fault = http1_head_fault(line + b"\r\nHost: x\r\n\r\n")
        assert fault is not None
        assert fault.status == 505


def test_bare_line_ends_are_what_is_wrong_with_a_head_of_http_1() -> None:
    fault = http1_head_fault(b"GET / HTTP/1.1\nHost: x\n\n")
    assert fault is not None
    assert (fault.status, fault.code) == (400, "malformed_head")


# Random bytes are hardly ever a token, and then the value does not matter.
@given(TOKEN.map(str.encode) | st.binary(max_size=3), st.text("\0\r\n\t a\x80\xff", max_size=3).map(str.encode))
def test_a_field_passes_only_if_it_could_stand_on_a_line(name: bytes, value: bytes) -> None:
    sound = fields_fault([(name, value)]) is None
    assert sound == (name != b"" and all(c in TCHAR for c in name) and not set(value) & {0, 10, 13})


TCHAR = frozenset(b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
