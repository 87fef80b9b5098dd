"""Where a secret can stand in an exchange: each position plants one, and shows all that a record of it would say."""

import base64
import gzip
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, NamedTuple
from urllib.parse import quote

import zstandard

from calls.framing import eventstream
from calls.model import Headers
from calls.redaction.redactor import Redactor
from tests.calls.planted import Stream, body_of, places, plant_secret, stream_of
from tests.calls.secrets import KEY, SECRETS
from tests.calls.test_conformance import CASES, MEDIA, STREAMED
from tests.calls.token_samples import FAMILIES, KEPT, token

REDACTOR = Redactor(key=KEY)

type Shown = Iterator[str]
"""Texts that a record shows: its bytes, and what a reader makes of them."""

type Kind = str
"""`token`: any of the families that are known by their shape; `value`: what only its name makes a secret."""


class Position(NamedTuple):
    """A place, by the name that the documentation gives it."""

    name: str
    kind: Kind
    show: Callable[[str], Shown]


# -- heads


def _url(form: str, secret: str) -> Shown:
    yield REDACTOR.redact_url(form % secret)[0]


def _header(side: str, name: str, form: str, secret: str) -> Shown:
    headers: Headers = ((name % secret if "%" in name else name, form % secret if "%" in form else form),)
    yield str(
        REDACTOR.redact_request_headers(headers)[0]
        if side == "request"
        else REDACTOR.redact_response_headers(headers)[0]
    )


def _binary_header(secret: str) -> Shown:
    """A trailer of gRPC, whose name says that it is a message in base64."""
    value = base64.b64encode(b"\x08\x10\x12\x20it is %s ok" % secret.encode()).decode().rstrip("=")
    ((_, new),) = REDACTOR.redact_response_headers((("grpc-status-details-bin", value),))[0]
    yield new
    yield _plain_base64(new + "=" * (-len(new) % 4))


def _heads() -> Iterator[Position]:
    urls = {
        "path of a URL": "https://x.example/a/%s/b",
        "query of a URL, under any name": "https://x.example/a?b=1&q=%s#c",
        "fragment of a URL": "https://x.example/#%s",
        "parameter in the path of a URL": "https://x.example/a;v=%s/b",
    }
    for name, form in urls.items():
        yield Position(name, "token", partial(_url, form))
    for parameter in ("api_key", "sig", "access_token", "X-Amz-Signature", "password"):
        form = f"https://x.example/a?b=1&{parameter}=%s&c=2"
        yield Position("query of a URL, by the name", "value", partial(_url, form))
    yield Position("name and password in a URL", "value", partial(_url, "https://me:%s@x.example/"))
    for side in ("request", "response"):
        for name in ("User-Agent", "Location", "Content-Disposition"):
            yield Position(f"{side} header, whatever its name", "token", partial(_header, side, name, "a %s b"))
        yield Position(f"{side} header's own name", "token", partial(_header, side, "X-%s", "a"))
        for name in ("X-Private-Key", "X-Api-Key", "X-Session-Token", "Authorization", "X-Client-Secret"):
            yield Position(f"{side} header, by its name", "value", partial(_header, side, name, "%s"))
    yield Position("binary header or trailer of gRPC", "token", _binary_header)
    yield Position("cookie", "value", partial(_header, "request", "Cookie", "a=b; sid=%s"))
    yield Position("cookie", "value", partial(_header, "response", "Set-Cookie", "sid=%s; Path=/"))
    for form in ("token, %s", "base64url.bearer.authorization.k8s.io.%s, v5.channel.k8s.io"):
        yield Position("protocol of a WebSocket", "value", partial(_header, "request", "Sec-WebSocket-Protocol", form))
    yield Position("authorization scheme", "value", partial(_header, "request", "Authorization", "Bearer %s"))


# -- whole bodies


class Format(NamedTuple):
    """A way to write a secret into a body, and to read the body."""

    name: str
    media: str
    write: Callable[[str], bytes]
    read: Callable[[bytes], Any] = lambda data: data.decode("latin-1")
    coding: str | None = None


def _json(secret: str) -> bytes:
    return json.dumps({"messages": [{"role": "tool", "content": f"it is {secret} ok"}], "n": 1}).encode()


def _nest(depth: int, secret: str) -> bytes:
    text = secret
    for _ in range(depth):
        text = json.dumps({"arguments": text, "n": [1]})
    return text.encode()


def _unnest(depth: int, data: bytes) -> Any:
    value: Any = data.decode()
    for _ in range(depth):
        value = json.loads(value)["arguments"]
    return value


def _in_base64(form: str, secret: str, *, url_safe: bool = False, lines: int = 0, prefix: str = "") -> bytes:
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    data = encode(form.format(secret).encode()).decode()
    data = data.rstrip("=") if url_safe else data
    if lines:
        data = "".join(data[at : at + lines] + "\n" for at in range(0, len(data), lines))
    return json.dumps({"content": prefix + data, "encoding": "base64"}).encode()


def _from_base64(data: bytes) -> str:
    text = json.loads(data)["content"].rpartition(",")[2].replace("\n", "").translate(str.maketrans("-_", "+/"))
    return base64.b64decode(text + "=" * (-len(text) % 4)).decode("latin-1")


def _pack_text(text: bytes, headers: tuple[int, int]) -> bytes:
    short, long = headers
    size = len(text)
    if size >= 256:
        return bytes([long + 1, *size.to_bytes(2)]) + text
    return (bytes([short | size]) if size < 24 else bytes([long, size])) + text


def _messagepack(name: str, secret: str) -> bytes:
    return b"\x81" + _pack_text(name.encode(), (0xA0, 0xD9)) + _pack_text(secret.encode(), (0xA0, 0xD9))


def _cbor(name: str, secret: str) -> bytes:
    return b"\xa1" + _pack_text(name.encode(), (0x60, 0x78)) + _pack_text(secret.encode(), (0x60, 0x78))


def _protobuf(secret: str) -> bytes:
    return b"\x0a\x03abc\x12" + (bytes([len(secret)]) if len(secret) < 128 else b"") + secret.encode() + b"\x18\x01"


def _grpc_web_text(secret: str) -> bytes:
    message = _protobuf(secret)
    return base64.b64encode(b"\0" + len(message).to_bytes(4) + message)


_FILE = '--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\nContent-Type: text/plain\r\n\r\n{}\r\n--x--\r\n'
_MULTIPART = "multipart/form-data; boundary=x"


def _formats() -> Iterator[Format]:
    yield Format("text of JSON", "application/json", _json)
    yield Format("name of a member of JSON", "application/json", lambda s: json.dumps({"a": {s: 1}}).encode())
    for depth in (2, 3):
        read = partial(_unnest, depth)
        yield Format("JSON in a string of JSON", "application/json", partial(_nest, depth), read)
    yield Format(
        "escapes of JSON",
        "application/json",
        lambda s: b'{"a": "%s"}' % "".join(f"\\u{ord(char):04x}" for char in s).encode(),
        lambda data: json.loads(data)["a"],
    )
    yield Format(
        "percent-encoding",
        "text/plain",
        lambda s: ("see ?q=" + "".join(f"%{ord(char):02X}" for char in s)).encode(),
        lambda data: re.sub(rb"%(..)", lambda found: bytes.fromhex(found[1].decode()), data).decode("latin-1"),
    )
    form = "application/x-www-form-urlencoded"
    yield Format("field of a form", form, lambda s: f"a=1&q={quote(s)}&b=2".encode())
    yield Format("field or file of a multipart form", _MULTIPART, lambda s: _FILE.format(s).encode())
    yield Format("name of a file in a multipart form", _MULTIPART, lambda s: _FILE.replace('a"', s + '"').encode())
    yield Format("plain text, XML, YAML", "text/plain", lambda s: f"it is {s}, ok".encode())
    yield Format("plain text, XML, YAML", "application/xml", lambda s: f"<a><b>{s}</b></a>".encode())
    yield Format("plain text, XML, YAML", "application/yaml", lambda s: f"a:\n  b: {s}\n".encode())
    yield Format("MessagePack, CBOR, Protocol Buffers", "application/msgpack", partial(_messagepack, "a"))
    yield Format("MessagePack, CBOR, Protocol Buffers", "application/cbor", partial(_cbor, "a"))
    yield Format("MessagePack, CBOR, Protocol Buffers", "application/x-protobuf", _protobuf)
    yield Format("gRPC-Web in base64", "application/grpc-web-text", _grpc_web_text, lambda d: _plain_base64(d.decode()))
    base = "base64 in JSON"
    for text in ("{}", "export KEY={}\nand more", "é: {} and more words of it"):
        yield Format(base, "application/json", partial(_in_base64, text), _from_base64)
    yield Format("base64, URL-safe", "application/json", partial(_in_base64, "a {} b", url_safe=True), _from_base64)
    yield Format("base64 in lines", "application/json", partial(_in_base64, "words {} of it", lines=60), _from_base64)
    url = "data:text/plain;base64,"
    yield Format("data URL", "application/json", partial(_in_base64, "words {} of it", prefix=url), _from_base64)
    yield Format("gzip, deflate, zstd", "application/json", lambda s: gzip.compress(_json(s), 1), _gunzip, "gzip")
    yield Format(
        "gzip, deflate, zstd",
        "application/json",
        lambda s: zstandard.ZstdCompressor(1).compress(_json(s)),
        lambda data: zstandard.ZstdDecompressor().decompressobj().decompress(data).decode(),
        "zstd",
    )


def _gunzip(data: bytes) -> str:
    return gzip.decompress(data).decode()


def _body(written: Format, secret: str) -> Shown:
    data = written.write(secret)
    work = REDACTOR.new_body_redactor(written.media, written.coding)
    parts = [data[at : at + 37] for at in range(0, len(data), 37)]
    new = b"".join(piece.data for at, part in enumerate(parts) for piece in work.feed(part, at))
    new += b"".join(piece.data for piece in work.finish())
    yield new.decode("latin-1")
    yield written.read(new)


def bodies() -> Iterator[Position]:
    """The positions in whole bodies."""
    for written in _formats():
        yield Position(written.name, "token", partial(_body, written))
    for name, media, form in NAMED:
        written = Format(name, media, partial(_fill_form, form))
        yield Position(name, "value", partial(_body, written))
    for member in ("password", "api_key", "openai_api_key", "clientSecret"):
        for pack in (_messagepack, _cbor):
            written = Format("MessagePack and CBOR, by the name", "application/msgpack", partial(pack, member))
            yield Position(written.name, "value", partial(_body, written))


def _fill_form(form: str, secret: str) -> bytes:
    return form.replace("%s", secret).encode()


_JSON = "application/json"
_MEMBER = "member of JSON, also in a string of JSON"
_NESTED = "address inside of an address"
_LIST = "list or object under the name"
_PAIR = "name beside its value"
_VARIABLE = "variable, YAML, TOML"
_PROSE = "prose: NAME is VALUE"
_SQL = "SQL"
_OPTION = "option of a command"

NAMED: tuple[tuple[str, str, str], ...] = (
    (_MEMBER, _JSON, '{"api_key": "%s"}'),
    (_MEMBER, _JSON, '{"OPENAI_API_KEY" : "%s", "n": 1}'),
    (_MEMBER, _JSON, '{"arguments": "{\\"password\\": \\"%s\\"}"}'),
    (_MEMBER, _JSON, '{"api\\u005fkey": "%s"}'),
    (_NESTED, "text/plain", "to=https%3A%2F%2Fx%2Fa%3Fb%3D1%26api_key%3D%s&c=2"),
    (_NESTED, "text/plain", "to=https%3A%2F%2Fx%2Fa%3Fsig%3D%s%26c%3D2"),
    (_NESTED, "text/plain", "to=https%3A%2F%2Fme%3A%s%40x%2Fa"),
    (_MEMBER, _JSON, '{"headers": {"Authorization": "Bearer %s"}}'),
    (_NESTED, "text/plain", "to=https%253A%252F%252Fx%252F%253Fb%253D1%2526api_key%253D%s%2526c"),
    (_NESTED, "text/plain", "payload=%7B%22api_key%22%3A%22%s%22%2C%22n%22%3A1%7D&c=2"),
    (_MEMBER, _JSON, '{"Name": "prod/db", "SecretString": "%s"}'),
    (_LIST, _JSON, '{"api_key": ["%s"]}'),
    (_LIST, _JSON, '{"headers": {"set-cookie": ["sid=%s; Path=/"]}}'),
    (_LIST, _JSON, '{"api_keys": ["first", "%s"], "n": 1}'),
    (_LIST, _JSON, '{"api_key": {"value": "%s"}}'),
    (_LIST, _JSON, '{"password": {"prod": {"eu": "%s"}}}'),
    (_LIST, _JSON, '{"a": "{\\"api_key\\": [\\"%s\\"]}"}'),
    (_LIST, "application/yaml", "api_keys:\n  - %s\n"),
    (_PAIR, _JSON, '[{"name": "API_KEY", "value": "%s"}]'),
    (_PAIR, _JSON, '[{"value": "%s", "name": "API_KEY"}]'),
    (_PAIR, _JSON, '{"headers": [["X-Api-Key", "%s"]]}'),
    (_PAIR, _JSON, '{"env": [{"name": "DB_PASSWORD", "type": "plain", "value": "%s"}]}'),
    (_PAIR, _JSON, '{"cookies": [{"name": "sid", "path": "/", "value": "%s"}]}'),
    (_VARIABLE, "text/plain", "export OPENAI_API_KEY=%s\n"),
    (_VARIABLE, "text/plain", "password: %s\nuser: me"),
    (_VARIABLE, "text/plain", "machine h.example login me password %s\n"),
    (_VARIABLE, "text/plain", 'client_secret = "%s"\n'),
    (_VARIABLE, "text/plain", "DefaultEndpointsProtocol=https;AccountKey=%s;EndpointSuffix=core"),
    (_VARIABLE, "text/plain", "postgres://user:%s@db.example:5432/x"),
    ("field of a form or of a multipart form, by the name", "application/x-www-form-urlencoded", "password=%s&a=1"),
    ("field of a form or of a multipart form, by the name", "application/x-www-form-urlencoded", "a=1&api_key=%s"),
    ("field of a form or of a multipart form, by the name", "application/x-www-form-urlencoded", "user[password]=%s"),
    ("field of a form or of a multipart form, by the name", "application/x-www-form-urlencoded", "a%5Bapi_key%5D=%s"),
    (
        "field of a form or of a multipart form, by the name",
        _MULTIPART,
        '--x\r\nContent-Disposition: form-data; name="api_key"\r\n\r\n%s\r\n--x--\r\n',
    ),
    ("element or attribute of XML", "application/xml", "<a><Password>%s</Password></a>"),
    ("element or attribute of XML", "application/xml", "<a><Password><![CDATA[%s]]></Password></a>"),
    ("element or attribute of XML", "application/xml", '<db password="%s"/>'),
    ("element or attribute of XML", "application/xml", '<add key="Password" value="%s"/>'),
    ("element or attribute of XML", "application/xml", "<dict><key>db_password</key>\n\t<string>%s</string></dict>"),
    (_PROSE, "text/plain", "my password is %s, keep it"),
    (_PROSE, "text/plain", "The API key is `%s`"),
    (_PROSE, "text/plain", "**Password:** `%s`"),
    (_SQL, "text/plain", "ALTER USER x WITH PASSWORD '%s'"),
    (_SQL, "text/plain", "CREATE USER x IDENTIFIED BY '%s'"),
    (_SQL, "text/plain", "UPDATE t SET api_key = '%s' WHERE id = 1"),
    (_SQL, "text/plain", "INSERT INTO t (id, api_key, at) VALUES (1, '%s', '2024-01-01')"),
    (_OPTION, "text/plain", "tool --password %s --verbose"),
    (_OPTION, "text/plain", "tool --api-key=%s x"),
    (_OPTION, "text/plain", "curl -u me:%s https://x.example"),
    (_OPTION, _JSON, '{"args": ["--password", "%s"]}'),
    (_OPTION, "text/plain", "mysqldump --user=root -p%s db > dump.sql"),
    (_OPTION, _JSON, '{"command": "mysql -h db -p\'%s\' shop"}'),
)
"""Row of the table, media type, and a body in which a value stands whose name makes it a secret."""


# -- streams


def _streams(secret: str, rnd: random.Random, plants: "list[Plant]") -> Shown:
    for plant in plants:
        one = plant_secret(plant.stream, plant.number, plant.path, secret, rnd)
        if plant.suffix == ".messages":
            new = _messages(one.body)
        else:
            work = REDACTOR.new_body_redactor(MEDIA[plant.suffix])
            parts = [one.body[at : at + 173] for at in range(0, len(one.body), 173)]
            new = b"".join(piece.data for at, part in enumerate(parts) for piece in work.feed(part, at))
            new += b"".join(piece.data for piece in work.finish())
        again = stream_of(plant.suffix, new)
        assert again, "the framing is broken"
        texts = [_at(message, plant.path) for message in again.messages[plant.number :][: len(one.pieces)]]
        yield "".join(texts) + new.decode("latin-1")


def _at(value: Any, path: tuple[str | int, ...]) -> str:
    for step in path:
        value = value[step]
    assert isinstance(value, str)
    return value


def _messages(data: bytes) -> bytes:
    work = REDACTOR.new_message_redactor()
    body = body_of(data)
    found = [one for c in body.chunks for one in work.feed(body.data[c.offset :][: c.size], c.at, c.kind)]
    return b"".join(one.data + b"\n" for one in [*found, *work.finish()])


class Plant(NamedTuple):
    """A string of a captured stream that grows."""

    dialect: str
    suffix: str
    stream: Stream
    number: int
    path: tuple[str | int, ...]
    kind: str


@cache
def plants() -> tuple[Plant, ...]:
    """One of each kind in each captured stream."""
    found: dict[tuple[Any, ...], Plant] = {}
    for dialect, file in CASES:
        stream = stream_of(file) if file.suffix in STREAMED else None
        for number, path in places(stream.messages) if stream else ():
            assert stream
            names = tuple(step for step in path if isinstance(step, str))
            kind = _kind(stream.messages[number], names)
            plant = Plant(dialect.name, file.suffix, stream, number, path, kind)
            found.setdefault((file, names, kind), plant)
    return tuple(found.values())


_THOUGHT = re.compile(r"thinking|reasoning|thought")
_TOOL = re.compile(r"argument|partial_json|tool_call|toolUse|function|input|parameters|stringValue")


def _kind(message: Any, names: tuple[str, ...]) -> str:
    text = " ".join(
        (*names, *(str(value) for value in (message.get("value") or message, message.get("inner"))))[: len(names)]
    )
    inner = message.get("inner") or message.get("value") or message
    text += str(inner.get("type") or inner.get("event_type") or "") if isinstance(inner, dict) else ""
    if _THOUGHT.search(text):
        return "thinking"
    return "arguments of tools" if _TOOL.search(text) else "text"


FRAMINGS = {
    ".sse": "server-sent events",
    ".ndjson": "JSON lines",
    ".array": "JSON array",
    ".eventstream": "AWS event stream",
    ".messages": "WebSocket",
}


def cut(text: str, size: int = 3) -> list[str]:
    """The text, a few letters at a time."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def _sse(values: list[Any]) -> bytes:
    return b"".join(b"data: %s\n\n" % json.dumps(value).encode() for value in values)


def _chat(texts: list[str]) -> bytes:
    return _sse([{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts])


def _spelled_text(body: bytes) -> str:
    events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
    return "".join(event["choices"][0]["delta"]["content"] for event in events)


def _spell_out(form: Callable[[str], str], read: Callable[[str], str], secret: str) -> Shown:
    """What a chat spells out, three letters at a time."""
    new = REDACTOR.redact_body(_chat(["see ", *cut(form(secret)), " ok"]), "text/event-stream")[0]
    yield _spelled_text(new)
    yield read(_spelled_text(new)[len("see ") : -len(" ok")])


def _base64_text(secret: str) -> str:
    return base64.b64encode(f"it is {secret} ok".encode()).decode()


def _escaped_json(secret: str) -> str:
    escaped = "".join(f"\\u{ord(char):04x}" if char in "-_" else char for char in secret)
    return f'{{"a": "{escaped}"}}'


def _payload_parts(secret: str) -> Shown:
    body = _chat(["see ", *cut(secret), " ok"])
    headers: dict[str, Any] = {":event-type": "PayloadPart", ":message-type": "event"}
    data = b"".join(eventstream.encode_frame(headers, body[at : at + 41]) for at in range(0, len(body), 41))
    new = REDACTOR.redact_body(data, MEDIA[".eventstream"])[0]
    yield _spelled_text(b"".join(frame.payload for frame in eventstream.Decoder().feed_frames(new)))


def _encoded_text(secret: str) -> Shown:
    """Text in base64, a piece a frame, as agents of Bedrock send it."""
    headers: dict[str, Any] = {":event-type": "chunk", ":message-type": "event"}
    parts = [base64.b64encode(part.encode()).decode() for part in ["it is ", *cut(secret), " ok"]]
    data = b"".join(eventstream.encode_frame(headers, json.dumps({"bytes": part}).encode()) for part in parts)
    new = REDACTOR.redact_body(data, MEDIA[".eventstream"])[0]
    frames = eventstream.Decoder().feed_frames(new)
    yield b"".join(base64.b64decode(json.loads(frame.payload)["bytes"]) for frame in frames).decode()


def _lines_of_events(secret: str) -> Shown:
    data = b"".join(b"event: output\nid: %d:0\ndata: %s\n\n" % (at, one.encode()) for at, one in enumerate(cut(secret)))
    new = REDACTOR.redact_body(data, "text/event-stream")[0]
    yield "".join(line[6:] for line in new.decode().splitlines() if line.startswith("data: "))


def _request_stream(media: str, form: str, secret: str) -> Shown:
    """A request that is itself a stream."""
    data = "".join(form % json.dumps({"text": part}) for part in ["it is ", *cut(secret), " ok"]).encode()
    new = REDACTOR.redact_body(data, media)[0]
    yield "".join(re.findall(r'"text": "([^"]*)"', new.decode()))


def _whole_message(form: str, secret: str) -> Shown:
    yield REDACTOR.redact_message((form % secret).encode())[0].decode("latin-1")


def _client_pieces(secret: str) -> Shown:
    new = _messages(b"".join(json.dumps({"type": "input", "text": part}).encode() + b"\n" for part in cut(secret)))
    yield "".join(json.loads(line)["text"] for line in new.splitlines())


def _spelled_positions() -> Iterator[Position]:
    yield Position("AWS event stream: parts of another stream (SageMaker)", "token", _payload_parts)
    yield Position("AWS event stream: text in base64 (agents of Bedrock)", "token", _encoded_text)
    yield Position("server-sent events: plain lines", "token", _lines_of_events)
    yield Position("request that is a stream", "token", partial(_request_stream, "application/x-ndjson", "%s\n"))
    yield Position("request that is a stream", "token", partial(_request_stream, "text/event-stream", "data: %s\n\n"))
    yield Position("message of a WebSocket, from either side", "token", partial(_whole_message, '{"text": "a %s"}'))
    yield Position("message of a WebSocket, from either side", "token", partial(_whole_message, "\x00\x01 %s \x02"))
    yield Position("messages of a WebSocket, in pieces, from a client", "token", _client_pieces)
    decode = Position("base64 that a model spells out", "token", partial(_spell_out, _base64_text, _plain_base64))
    yield decode
    yield Position(
        "escapes of JSON that a model spells out",
        "token",
        partial(_spell_out, _escaped_json, lambda text: str(json.loads(text)["a"])),
    )
    yield Position(
        "named value that a model spells out", "value", partial(_spell_out, '{{"password": "{}"}}'.format, str)
    )
    yield Position(
        "named value that a model spells out", "value", partial(_spell_out, '{{"api_key": ["{}"]}}'.format, str)
    )
    yield Position(
        "named value that a model spells out", "value", partial(_spell_out, "export API_KEY={}\n".format, str)
    )


def _plain_base64(text: str) -> str:
    return base64.b64decode(text).decode("latin-1")


# -- the table

WINDOW = 10
"""So many characters of a secret are not to be found anywhere."""


def is_shown(secret: str, texts: Shown) -> bool:
    """Whether a part of the secret is in any of the texts."""
    parts = [secret[at : at + WINDOW] for at in range(len(secret) - WINDOW + 1)]
    return any(part in text for text in texts for part in parts)


def _proof(family: str, secret: str) -> str:
    """What of a token is secret."""
    kept = re.match(KEPT.get(family, ""), secret)
    return secret[kept.end() :] if kept else secret


class Row(NamedTuple):
    """How many secrets were planted in positions of a name, and how many of them a record shows."""

    name: str
    planted: int
    leaked: int


def table() -> list[Row]:
    """All families in all positions; in each string of a captured stream that grows, two families by turns."""
    counts: dict[str, list[str | None]] = {}
    for position in (*_heads(), *bodies(), *_spelled_positions()):
        secrets = [(f, token(f)) for f in FAMILIES] if position.kind == "token" else [("", one) for one in SECRETS]
        for family, secret in secrets:
            leaked = is_shown(_proof(family, secret), position.show(secret))
            counts.setdefault(position.name, []).append(family or secret if leaked else None)
    for number, plant in enumerate(plants()):
        for turn in range(2):
            family = FAMILIES[(number * 2 + turn) % len(FAMILIES)]
            secret = token(family, number)
            leaked = is_shown(_proof(family, secret), _streams(secret, random.Random(number), [plant]))
            name = f"{FRAMINGS[plant.suffix]}: {plant.kind}"
            counts.setdefault(name, []).append(f"{family} in {plant.dialect} {plant.path}" if leaked else None)
    LEAKS.clear()
    LEAKS.update({name: [one for one in found if one] for name, found in counts.items() if any(found)})
    return [Row(name, len(found), sum(one is not None for one in found)) for name, found in counts.items()]


def render_table(rows: list[Row]) -> str:
    """The table as the documentation has it."""
    lines = [f"| {row.name} | {row.planted:,} | {row.leaked or 'none'} |" for row in rows]
    total = (
        f"| **in all** | **{sum(row.planted for row in rows):,}** | **{sum(row.leaked for row in rows) or 'none'}** |"
    )
    return "\n".join(["| where | planted | leaked |", "|---|---|---|", *lines, total]) + "\n"


def spelled_base64(text: str, size: int) -> bytes:
    """A chat that spells out a text in base64, as it is recorded."""
    new = REDACTOR.redact_body(
        _chat(["see ", *cut(base64.b64encode(text.encode()).decode(), size), " ok"]), MEDIA[".sse"]
    )[0]
    assert not is_shown(text[6:], iter([_plain_base64(_spelled_text(new)[len("see ") : -len(" ok")])]))
    return new


LEAKS: dict[str, list[str]] = {}
"""What the last table found, for whoever has to mend it."""


if __name__ == "__main__":
    print(render_table(table()), LEAKS)
