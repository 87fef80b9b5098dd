"""The rules for tokens, private keys, webhooks and schemes inside bodies, and the table of all rules.

The rules are our own, made from what providers publish about their keys. They lean to recall, but know the ids and the
prose that merely resemble a key. What only its name makes a secret is in `named_values`, the prefixes in `token_families`.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator

from calls.redaction.rules.named_values import NAMED
from calls.redaction.rules.patterns import Either, Part, Some, Word
from calls.redaction.rules.secret_rule import (
    AROUND,
    ESCAPE,
    End,
    Real,
    SecretRule,
    is_long,
    is_random,
    reject_replaced,
    run,
)
from calls.redaction.rules.token_families import EXACT, PREFIXES

_DIGIT = re.compile(rb"[0-9]")
_BASE64 = re.compile(rb"[A-Za-z0-9+/=]{40}")
_JOSE = re.compile(rb"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}")


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


def _without_words(prefixes: str, real: Real) -> Real:
    """Of the few beginnings that words have too, what is no words."""
    if prefixes not in ("sk-", "pa-", "re_"):
        return real
    words = _VOICES if prefixes == "sk-" else _WORDS
    return lambda data, lead, start, stop: real(data, lead, start, stop) and not words.fullmatch(data, start, stop)


def _is_jose(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """A signed or encrypted JSON object has at least a header and a payload, with a dot between."""
    return _JOSE.match(data, start, stop) is not None


@reject_replaced
def _is_pem(data: bytes, _lead: int, start: int, stop: int) -> bool:
    return _BASE64.search(data, start, stop) is not None


@reject_replaced
def _before_at(data: bytes, _lead: int, _start: int, stop: int) -> bool:
    return data[stop : stop + 1] == b"@"


def _is_basic(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """`name:password` in base64 (RFC 7617)."""
    try:
        return b":" in b64decode(data[start:stop], validate=True)
    except NotBase64:
        return False


_PEM_END = re.compile(rb"-----|[\"'<]")


def _pem_end(data: bytes, at: int) -> int:
    found = _PEM_END.search(data, at)
    return found.start() if found else len(data)


_SEEN = 6
"""How much of a secret the expression asks to see; how long it must be, `real` says. Counting is dear in an automaton."""

_WORD = "A-Za-z0-9_\\-"
_ALNUM = "A-Za-z0-9"


def _prefix_rules() -> Iterator[SecretRule]:
    for prefixes, chars, least in PREFIXES:
        begin = (Word(tuple(prefixes.split())), Some(f"[{chars}]", _SEEN, _SEEN))
        yield SecretRule(
            kind="T", begin=begin, end=run(chars), real=_without_words(prefixes, is_random(least)), apart=True
        )


def _short_in_cbor(header: str, prefixes: tuple[str, ...], chars: str) -> SecretRule:
    size = ord(header) & 0x1F
    return SecretRule(
        kind="T",
        lead=(Word((header,)),),
        begin=(Word(prefixes), Some(f"[{chars}]", _SEEN, _SEEN)),
        end=run(f"{chars}_", size),
        real=lambda _data, _lead, start, stop: stop - start == size,
        bounded=False,
        apart=True,
    )


_OTHER_TOKENS = (
    SecretRule(
        kind="T",
        begin=(Word(("AKIA", "ASIA", "ABIA", "ACCA")), Some("[A-Z0-9]", _SEEN, _SEEN)),
        end=run("A-Za-z0-9_"),
        real=lambda _data, _lead, start, stop: stop - start == 20,
        apart=True,
    ),
    SecretRule(
        kind="T", begin=(Word(("eyJ",)), Some(f"[{_WORD}]", _SEEN, _SEEN)), end=run("A-Za-z0-9_.=\\-"), real=_is_jose
    ),
    # In CBOR the header of so short a string is a letter.
    _short_in_cbor("t", ("AKIA", "ASIA", "ABIA", "ACCA"), "A-Z0-9"),
    _short_in_cbor("w", ("sm_aat_", "sm_pat_", "sm_sat_"), _ALNUM),
    SecretRule(
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


def _shape_rule(
    begin: tuple[Part, ...], chars: str, shape: bytes, *, lead: tuple[Part, ...] = (), bounded: bool = False
) -> SecretRule:
    """A family whose tokens have their mark in the middle, or so short a prefix that their whole shape must be looked at."""
    match = re.compile(shape).match

    def real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        return match(data, start, stop) is not None and _DIGIT.search(data, start, stop) is not None

    return SecretRule(
        kind="T", lead=lead, begin=begin, end=run(chars), real=real, bounded=bounded or not lead, apart=True
    )


def _some(chars: str, count: int, most: int | None = None) -> Some:
    return Some(f"[{chars}]", count, most or count)


def _is_exactly(shape: str) -> Real:
    fullmatch, is_no_word = re.compile(shape.encode()).fullmatch, is_random(0)

    def real(data: bytes, lead: int, start: int, stop: int) -> bool:
        return fullmatch(data, start, stop) is not None and is_no_word(data, lead, start, stop)

    return real


# What base64 adds belongs to the word, so that a piece of base64 is none; but in a path a slash ends it, and behind `q=` too.
_BLOB_END = run("A-Za-z0-9+/=_\\-", 500)
_PART_END = run("A-Za-z0-9+=_\\-", 500)


def _exact_end(data: bytes, at: int) -> End:
    return (_PART_END if data[at - 1 : at] in (b"/", b"=") else _BLOB_END)(data, at)


def _exact_rules() -> Iterator[SecretRule]:
    for prefix, rest in EXACT:
        begin = (Word((prefix,)), _some(_WORD, _SEEN))
        yield SecretRule(kind="T", begin=begin, end=_exact_end, real=_is_exactly(prefix + rest), apart=True)


_SHAPED = (
    *_exact_rules(),
    # Mailchimp: all but the first four of 32 hexadecimal digits, for words begin with so many, and the data centre
    _shape_rule(
        (_some("a-f0-9", 28), Word(("-us",)), _some("0-9", 1)),
        "a-z0-9\\-",
        rb"[a-f0-9]{28}-us\d{1,2}\b",
        lead=(_some("a-f0-9", 4),),
        bounded=True,
    ),
    # Terraform Cloud, behind the token's id; ClickUp
    _shape_rule((_some(_WORD, 6),), "A-Za-z0-9_=\\-", rb"[\w=-]{50}", lead=(Word((".atlasv1.",)),)),
    _shape_rule(
        (Word(("pk_",)), _some("0-9", 6, 10), Word(("_",)), _some("A-Z0-9", 6)), "A-Z0-9_pk", rb"pk_\d+_[A-Z0-9]{30}"
    ),
    # OpenShift
    _shape_rule((Word(("sha256",)), _some("~", 1), _some(_WORD, 6)), "A-Za-z0-9_~\\-", rb"sha256~[\w-]{40}"),
    # Vault's old service tokens; Harness
    _shape_rule(
        (Word(("s.",)), _some(_ALNUM, 6)), _ALNUM + ".", rb"s\.(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{24}\b"
    ),
    _shape_rule(
        (Word(("pat.", "sat.")), _some(_WORD, 22), Word((".",)), _some(_ALNUM, 6)),
        "A-Za-z0-9_.\\-",
        rb"[ps]at\.[\w-]{22}\.\w{24}\.\w{20}",
    ),
    # Authress
    _shape_rule(
        (Word(("sc_", "ext_", "scauth_", "authress_")), _some("a-z0-9", 5, 30), Word((".",)), _some("a-z0-9", 4)),
        "A-Za-z0-9_.+/=\\-",
        rb"\w+\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30}",
    ),
)


def _behind(lead: tuple[Part, ...], chars: str, shape: bytes, *, before: bytes = b"") -> SecretRule:
    """A family whose tokens begin with what is no secret: the id of a user, a bot or the token itself.

    That stays. Were it replaced as well, every word and number that a stream ends with might begin a token, and would have to wait
    in the record. `shape` is the secret's, `before` that of what stands before it where a word does not begin with the lead.
    """
    is_led, is_shaped = re.compile(before + rb"\Z").search, re.compile(shape).match

    def real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        return is_shaped(data, start, stop) is not None and is_led(data, max(0, start - AROUND), start) is not None

    return SecretRule(
        kind="T",
        lead=lead,
        begin=(_some(chars, _SEEN),),
        end=run(chars),
        real=reject_replaced(real),
        bounded=not before,
        apart=True,
    )


_ASANA_USER = (Word(("/",)), _some("0-9", 12, 20))
_BEHIND_IDS = (
    # Airtable: the token's id, 64 hexadecimal digits
    _behind((Word(("pat",)), _some(_ALNUM, 14), Word((".",))), "a-f0-9", rb"[a-f0-9]{64}"),
    # Asana: a version, one or two users, 32 hexadecimal digits
    _behind(
        (_some("12", 1), *_ASANA_USER, Either(((Word((":",)),), (*_ASANA_USER, Word((":",)))))),
        "a-f0-9",
        rb"[a-f0-9]{32}\b",
    ),
    # Discord: a user's id in base64, a time, a signature
    _behind(
        (Word((".",)), _some(_WORD, 6), Word((".",))),
        _WORD,
        rb"[\w-]{25}",
        before=rb"[MNO][\w-]{22,27}\.[\w-]{6}\.",
    ),
    # Telegram: a bot's id
    _behind((_some("0-9", 8, 10), Word((":AA",))), ":" + _WORD, rb"[\w-]{33}"),
    # Zhipu: the key's id
    _behind(
        (_some("a-f0-9", 32), Word((".",))),
        _ALNUM,
        rb"(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{16}\b",
    ),
    # Azure AD: three characters, which Microsoft itself shows as the secret's hint, a digit and a mark
    _behind(
        (_some("0-9", 1), Word(("Q",)), _some("~", 1)),
        "A-Za-z0-9_~.\\-",
        rb"[\w~.-]{31}",
        before=rb"(?:\A|[^\w~.]|%s)[\w~.]{3}\dQ~" % ESCAPE.encode("latin-1"),
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
_HOOK = SecretRule(
    kind="T",
    # JSON may escape a slash.
    lead=(Word(_HOOKS + tuple(hook.replace("/", "\\/") for hook in _HOOKS)),),
    begin=(Some(f"[{_WORD}/\\\\:]", _SEEN, _SEEN),),
    end=run(f"{_WORD}/\\\\:@"),
    real=reject_replaced(is_long(16)),
)

_HEADER_CHARS = "A-Za-z0-9._~+/=\\-"
_SCHEMES = (
    SecretRule(
        kind="A",
        lead=(Word(("bearer",), nocase=True), Some("[ +]", 1, 4)),
        begin=(Some(f"[{_HEADER_CHARS}]", _SEEN, _SEEN),),
        end=run(_HEADER_CHARS),
        real=reject_replaced(is_long(12)),
    ),
    SecretRule(
        kind="A",
        lead=(Word(("basic",), nocase=True), Some("[ +]", 1, 4)),
        begin=(Some("[A-Za-z0-9+/=]", _SEEN, _SEEN),),
        end=run("A-Za-z0-9+/="),
        real=_is_basic,
    ),
)

_USERINFO_CHARS = r"^\s/:@\"'<>\\?#"
_USERINFO = SecretRule(
    kind="U",
    lead=(Word(("://",)), Some(f"[{_USERINFO_CHARS}]", 0, 64), Word((":",))),
    end=run(_USERINFO_CHARS),
    real=_before_at,
    bounded=False,
)

_UNKNOWN_SCHEME = SecretRule(
    kind="A",  # of no scheme that we know, or of none: `Authorization: Token …`, `Authorization: ApiKey …`
    lead=(
        Word(("authorization",), nocase=True),
        Some("[:= ]", 1, 3),
        Some("[A-Za-z0-9-]", 3, 20),
        Some(" ", 1, 1),
    ),
    begin=(Some(f"[{_HEADER_CHARS}]", _SEEN, _SEEN),),
    end=run(_HEADER_CHARS),
    real=reject_replaced(is_long(12)),
)

RULES: tuple[SecretRule, ...] = (
    *_prefix_rules(),
    *_OTHER_TOKENS,
    *_SHAPED,
    *_BEHIND_IDS,
    _HOOK,
    _UNKNOWN_SCHEME,
    *NAMED,
    *_SCHEMES,
    _USERINFO,
)
