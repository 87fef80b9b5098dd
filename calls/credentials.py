"""What a credential looks like inside a body: the table of rules.

The table is our own, made from what providers publish about their keys. It leans to recall, but knows the ids and the
prose that merely resemble a key. A rule has a `lead`, which stays; a bounded `begin`, which decides that a secret
starts here; an `end`, which finds where it stops; and `real`, which has the last word.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from calls.patterns import Either, Part, Some, Word
from calls.placeholder import MARK

type End = Callable[[bytes, int], int]
"""Where the secret that starts (or goes on) at an offset stops; the length of the data when it ends first."""

type Real = Callable[[bytes, int, int, int], bool]
"""Whether data[start:stop], which a lead at an offset announced, is a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One way in which a secret shows itself."""

    kind: str
    """The letter in its placeholder."""

    lead: tuple[Part, ...] = ()
    begin: tuple[Part, ...] = ()
    end: Callable[[bytes, int], End]
    """Given the data and the secret's start: how to find its end."""

    real: Real
    bounded: bool = True
    """Whether it must not start in the middle of a word."""

    apart: bool = False
    """Whether it is none in the middle of base64."""


def run(chars: str) -> Callable[[bytes, int], End]:
    """A secret goes on as long as these characters do."""
    match = re.compile(rf"[{chars}]*".encode("latin-1")).match

    def end(data: bytes, at: int) -> int:
        found = match(data, at)
        return found.end() if found else at

    return lambda _data, _at: end


# -- what is real

_DIGIT = re.compile(rb"[0-9]")
_SPACE = re.compile(rb"\s")
_BLANK = re.compile(rb"\$?\{.*\}|<.*>|%.*%|\$[A-Z_]+", re.DOTALL)
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{40}")
_JOSE = re.compile(rb"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}")


def _long(least: int) -> Real:
    """Of some length, and not a word: real keys hold a digit, prose with hyphens does not."""
    return lambda data, _lead, start, stop: stop - start >= least and _DIGIT.search(data, start, stop) is not None


def _unreplaced(real: Real) -> Real:
    """Nothing of which was replaced before: that was judged as it stood, may have had an end in it, and stays as it is."""
    return lambda data, lead, start, stop: data.find(MARK, start, stop) < 0 and real(data, lead, start, stop)


_key_like = _long(8)

AROUND = 64
"""How many bytes before a secret a rule may look at."""

_BLOB = 48
_OPAQUE = re.compile(rb"[A-Za-z0-9_-]{%d}|[A-Za-z0-9+/]{%d}" % (_BLOB, _BLOB))
_UPPER, _LOWER = re.compile(rb"[A-Z]"), re.compile(rb"[a-z]")


_WORDS = re.compile(rb"[A-Za-z]*+[0-9]*+(?:[-_](?:[A-Z]?[a-z]++|[A-Z]*+)[0-9]*+)*+")
_VOICES = re.compile(rb"sk-SK-[A-Z][A-Za-z0-9-]{1,30}")
"""Google's Slovak ones: `sk-SK-Chirp3-HD-Achernar`."""


def in_blob(before: bytes) -> bool:
    """Whether what comes after this is in the midst of base64: images and encrypted reasoning hold `-sk-` and `/AIza` by chance, 1 of 900 blobs of 4 KB.

    A path or a name before a key has words: few capitals, or none.
    """
    before = before[-_BLOB:]
    if _OPAQUE.fullmatch(before) is None:
        return False
    return len(_UPPER.findall(before)) >= 8 and len(_LOWER.findall(before)) >= 8 and _DIGIT.search(before) is not None


def _told_apart(prefixes: str, real: Real) -> Real:
    """Of the few beginnings that words have too, what is no words."""
    if prefixes not in ("sk-", "pa-"):
        return real
    words = _WORDS if prefixes == "pa-" else _VOICES
    return lambda data, lead, start, stop: real(data, lead, start, stop) and not words.fullmatch(data, start, stop)


def _plain(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """Anything but nothing and a blank to be filled in: `${KEY}`, `{{key}}`, `<your key>`."""
    if start == stop or _BLANK.fullmatch(data, start, stop):
        return False
    # A blank whose end was replaced, with a secret inside of it, is still one.
    return data[start] not in b"$%<{" or data.find(MARK, start, stop) < 0


@_unreplaced
def _assigned(data: bytes, lead: int, start: int, stop: int) -> bool:
    return _key_like(data, lead, start, stop) and _SPACE.search(data, start, stop) is None


def _is_jose(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """A signed or encrypted JSON object has at least a header and a payload, with a dot between."""
    return _JOSE.match(data, start, stop) is not None


@_unreplaced
def _is_pem(data: bytes, _lead: int, start: int, stop: int) -> bool:
    return _BASE64.search(data, start, stop) is not None


@_unreplaced
def _before_at(data: bytes, _lead: int, _start: int, stop: int) -> bool:
    return data[stop : stop + 1] == b"@"


def _is_basic(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """`name:password` in base64 (RFC 7617)."""
    try:
        return b":" in b64decode(data[start:stop], validate=True)
    except NotBase64:
        return False


# -- where a secret ends


def quoted(data: bytes, at: int) -> End:
    """The end of a string in quotes, themselves perhaps inside a JSON string inside a JSON string."""
    quote = data[at - 1 : at]
    depth = _depth(data, at - 1)

    def end(data: bytes, at: int) -> int:
        found = data.find(quote, at)
        while found >= 0 and not _closes(_backslashes(data, found, at), depth):
            found = data.find(quote, found + 1)
        return len(data) if found < 0 else max(at, found - min(_backslashes(data, found, at), 2**depth - 1))

    return end


def _backslashes(data: bytes, before: int, floor: int) -> int:
    count = 0
    while before - count > floor and data[before - count - 1] == 0x5C:
        count += 1
    return count


def _depth(data: bytes, quote: int) -> int:
    """How many JSON strings the string that opens here is inside of: each doubles the backslashes and adds one."""
    return (_backslashes(data, quote, max(0, quote - AROUND)) + 1).bit_length() - 1


def _closes(backslashes: int, depth: int) -> bool:
    """Whether a quote after so many backslashes ends the string, or one that it is inside of."""
    for _ in range(depth):
        if backslashes % 2 == 0:
            return True
        backslashes //= 2
    return backslashes % 2 == 0


_PEM_END = re.compile(rb"-----|[\"'<]")


def _pem_end(data: bytes, at: int) -> int:
    found = _PEM_END.search(data, at)
    return found.start() if found else len(data)


# -- the table

_SEEN = 6
"""How much of a secret the expression asks to see; how long it must be, `real` says. Counting is dear in an automaton."""

_WORD = "A-Za-z0-9_\\-"
_ALNUM = "A-Za-z0-9"
_DOTTED = "A-Za-z0-9_.\\-"
_BASE = "A-Za-z0-9+/=_\\-"

_PREFIXES: tuple[tuple[str, str, int], ...] = (
    ("sk-", _WORD, 20),  # OpenAI, Anthropic, OpenRouter, DeepSeek, LiteLLM, Langfuse
    ("ek_ sess- fw_", _ALNUM, 20),
    ("gsk_ pplx- xai- r8_ hf_ api_org_ jina_ csk- tgp_v1_", _ALNUM, 28),
    ("pcsk_ lsv2_pt_ lsv2_sk_ nvapi-", _WORD, 30),
    ("tvly-", "A-Za-z0-9\\-", 24),
    ("fc-", "a-f0-9", 32),
    ("pa-", _WORD, 40),
    ("ABSK bedrock-api-key-", "A-Za-z0-9+/=", 60),
    ("IQoJb3JpZ2luX2Vj FwoGZXIvYXdz FQoGZXIvYXdz", "A-Za-z0-9+/=", 60),  # sessions at AWS, which name them `Token` too
    ("ghp_ gho_ ghu_ ghs_ ghr_", _ALNUM, 30),
    ("github_pat_", "A-Za-z0-9_", 20),
    ("glpat- gldt- glrt- glcbt- glptt- glft- glimt- glagent- gloas- glsoat-", _DOTTED, 16),
    ("xoxa- xoxb- xoxc- xoxd- xoxe- xoxe. xoxp- xoxr- xoxs- xapp-", "A-Za-z0-9.%\\-", 10),
    ("AIza", _WORD, 30),
    ("ya29. GOCSPX- 1//0", _DOTTED, 20),
    ("npm_ rubygems_ dckr_pat_ sntryu_ sntrys_ lin_api_ figd_ sbp_", "A-Za-z0-9_=\\-", 24),
    ("shpat_ shpss_ shpca_ shppa_ dapi key-", "a-f0-9\\-", 32),
    ("pypi-", _WORD, 30),
    ("dop_v1_ doo_v1_ dor_v1_ ntn_ secret_", _ALNUM, 40),
    ("SG.", _DOTTED, 32),
    ("sk_live_ sk_test_ rk_live_ rk_test_", _ALNUM, 10),
    ("whsec_", _BASE, 16),
    ("hvs. hvb. dp.pt. dp.st. dp.sa.", _DOTTED, 24),
    ("ATATT3 ATCTT3 sl.B sl.u", "A-Za-z0-9_=\\-", 50),
    ("sq0atp- sq0csp- PMAK- pul- NRAK- xkeysib- glsa_ glc_ HRKU-", _WORD, 22),
    ("AGE-SECRET-KEY-1", "A-Z0-9", 50),
    ("openai-insecure-api-key.", _DOTTED, 8),
)


def _prefixed() -> Iterator[Rule]:
    for prefixes, chars, least in _PREFIXES:
        begin = (Word(tuple(prefixes.split())), Some(f"[{chars}]", _SEEN, _SEEN))
        yield Rule(kind="T", begin=begin, end=run(chars), real=_told_apart(prefixes, _long(least)), apart=True)


_OTHER_TOKENS = (
    Rule(
        kind="T",
        begin=(Word(("AKIA", "ASIA", "ABIA", "ACCA")), Some("[A-Z0-9]", _SEEN, _SEEN)),
        end=run("A-Za-z0-9_"),
        real=lambda _data, _lead, start, stop: stop - start == 20,
        apart=True,
    ),
    Rule(kind="T", begin=(Word(("eyJ",)), Some(f"[{_WORD}]", _SEEN, _SEEN)), end=run("A-Za-z0-9_.=\\-"), real=_is_jose),
    Rule(
        kind="T",  # Telegram
        begin=(Some("[0-9]", 8, 10), Word((":AA",)), Some(f"[{_WORD}]", _SEEN, _SEEN)),
        end=run(f":{_WORD}"),
        real=_long(1),
    ),
    Rule(
        kind="P",
        lead=(
            Word(("-----BEGIN ",)),
            Some("[A-Z ]", 0, 20),
            Word(("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----")),
        ),
        end=lambda _data, _at: _pem_end,
        real=_is_pem,
        bounded=False,
    ),
)

_HOOKS = (
    "hooks.slack.com/services/",
    "hooks.slack.com/workflows/",
    "hooks.slack.com/triggers/",
    "discord.com/api/webhooks/",
    "discordapp.com/api/webhooks/",
    "webhook.office.com/webhookb2/",
    "api.telegram.org/bot",
)
_HOOK = Rule(
    kind="T",
    # JSON may escape a slash.
    lead=(Word(_HOOKS + tuple(hook.replace("/", "\\/") for hook in _HOOKS)),),
    begin=(Some(f"[{_WORD}/\\\\:]", _SEEN, _SEEN),),
    end=run(f"{_WORD}/\\\\:@"),
    real=_unreplaced(_long(16)),
)

SECRET_NAMES = (
    "password",
    "passwd",
    "passphrase",
    "api~key",
    "api~token",
    "access~token",
    "refresh~token",
    "auth~token",
    "authorization~token",
    "bearer~token",
    "session~token",
    "security~token",
    "bot~token",
    "private~token",
    "secret~key",
    "secret~access~key",
    "secret~value",
    "client~secret",
    "app~secret",
    "consumer~secret",
    "shared~secret",
    "signing~secret",
    "webhook~secret",
    "private~key",
    "subscription~key",
)
"""Names that mean a secret, also at the end of a longer name: `openai_api_key`, `userPassword`."""

BARE_NAMES = ("secret", "pwd", "id~token", "authorization", "proxy-authorization", "cookie", "set-cookie")
"""Names that mean a secret only when they stand alone. `token` is none: the log probabilities of a model hold nothing else."""

_GAP = Some("\\s", 0, 4)
_QUOTE = (Some("\\\\", 0, 7), Some("[\"']", 1, 1))
_IS = (_GAP, Some("[:=]", 1, 1), _GAP)
_PART_OF_A_FORM = (Word(('"\r\n\r\n',)),)
_ELEMENT = (Some("[>]", 1, 1),)


def _named_end(data: bytes, at: int) -> End:
    """A value in quotes ends with them, one in a multipart form with its line, one in XML with its element, any other with
    its word."""
    match data[at - 1 : at]:
        case b'"' | b"'":
            return quoted(data, at)
        case b"\n":
            return _LINE(data, at)
        case b">":
            return _CONTENT(data, at)
        case _:
            return _VALUE(data, at)


def _named(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Behind `"name":`, in a form and in `<name>` whatever there is; in prose and code (`name = …`) what looks like a key.

    A private key's first line is none of it: its own rule knows where it ends.
    """
    if data.startswith(b"-----BEGIN ", start) and data[start - 1] not in b"\"'":
        return False
    if data[start - 1 : start] == b">":
        return _in_element(data, lead, start, stop) and _plain(data, lead, start, stop)
    named = _QUOTED_NAME.search(data, lead, start) or _in_query(data, lead)
    return _plain(data, lead, start, stop) if named else _assigned(data, lead, start, stop)


_QUOTED_NAME = re.compile(rb"[\"'](?:\s*[:=]\s*\\*[\"']|\r\n\r\n)\Z")


@_unreplaced
def _in_element(data: bytes, lead: int, start: int, stop: int) -> bool:
    """Whether the name is a tag's (`<SessionToken>`, `<ns:Password>`) and the value all of its element: prose has tags too."""
    opened = _OPENED.search(data, max(0, lead - AROUND), lead) is not None
    if _NEXT_FIELD.fullmatch(data, start, stop):
        return False
    return opened and not data[start : start + 1].isspace() and data[stop : stop + 1] == b"<"


_OPENED = re.compile(rb"<[\w:.-]*\Z")
_NEXT_FIELD = re.compile(rb"&\w+=")
"""Between two blanks of a form, as in `password=<PASSWORD>&username=<USER>`."""

_LINE = run("^\\r\\n")
_CONTENT = run('^<\\r\\n"\\\\')
_VALUE_CHARS = r"^&\s\"'<>\\#;,`(){}|"
_VALUE = run(_VALUE_CHARS)


def _names(names: tuple[str, ...], *, bounded: bool) -> Rule:
    ways = ((*_QUOTE, *_IS, *_QUOTE), (*_IS, *_QUOTE), _IS, _PART_OF_A_FORM, _ELEMENT)
    return Rule(kind="J", lead=(Word(names, nocase=True), Either(ways)), end=_named_end, real=_named, bounded=bounded)


_NAMED = (
    _names(SECRET_NAMES, bounded=False),
    _names(BARE_NAMES, bounded=True),
    Rule(
        kind="J",  # Azure, for a search in one's own data: {"type": "api_key", "key": …}
        lead=(Word(("api_key",)), *_QUOTE, _GAP, Word((",",)), _GAP, *_QUOTE, Word(("key",)), *_QUOTE, *_IS, *_QUOTE),
        end=_named_end,
        real=_plain,
    ),
    Rule(
        kind="J",
        # Of a shell, a .env file or a connection string
        lead=(Word(("ACCESS_KEY=", "SECRET=", "TOKEN=", "AccountKey=", "SharedAccessKey=")),),
        end=_named_end,
        real=_assigned,
        bounded=False,
    ),
)

SECRET_PARAMETERS = (
    *("sig", "signature", "x-amz-signature", "x-amz-credential", "x-amz-security-token", "x-goog-signature"),
    *("x-goog-credential", "assertion", "client_assertion", "code_verifier", "hapikey", "jwt"),
)
LIKELY_PARAMETERS = ("key", "token", "auth", "appid")
"""Names that are also given to harmless things: their values count when they look like keys."""


def _in_query(data: bytes, lead: int) -> bool:
    # An escape before the name, as in `\\u0026sig=`, is part of the lead.
    return data[lead - 1 : lead] in (b"?", b"&", b";") or data[lead : lead + 6] == rb"\u0026"


def _parameter(names: tuple[str, ...], real: Real) -> Rule:
    return Rule(
        kind="Q",
        lead=(Word(names, nocase=True), Word(("=",))),
        end=_VALUE,
        real=lambda data, lead, start, stop: _in_query(data, lead) and real(data, lead, start, stop),
    )


_PARAMETERS = (_parameter(SECRET_PARAMETERS, _plain), _parameter(LIKELY_PARAMETERS, _unreplaced(_long(12))))

_HEADER_CHARS = "A-Za-z0-9._~+/=\\-"
_SCHEMES = (
    Rule(
        kind="A",
        lead=(Word(("bearer",), nocase=True), Some("[ +]", 1, 4)),
        begin=(Some(f"[{_HEADER_CHARS}]", _SEEN, _SEEN),),
        end=run(_HEADER_CHARS),
        real=_unreplaced(_long(12)),
    ),
    Rule(
        kind="A",
        lead=(Word(("basic",), nocase=True), Some("[ +]", 1, 4)),
        begin=(Some("[A-Za-z0-9+/=]", _SEEN, _SEEN),),
        end=run("A-Za-z0-9+/="),
        real=_is_basic,
    ),
)

_USERINFO_CHARS = r"^\s/:@\"'<>\\?#"
_USERINFO = Rule(
    kind="U",
    lead=(Word(("://",)), Some(f"[{_USERINFO_CHARS}]", 0, 64), Word((":",))),
    end=run(_USERINFO_CHARS),
    real=_before_at,
    bounded=False,
)

RULES: tuple[Rule, ...] = (*_prefixed(), *_OTHER_TOKENS, _HOOK, *_NAMED, *_PARAMETERS, *_SCHEMES, _USERINFO)
