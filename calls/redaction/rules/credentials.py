"""The rules for tokens, private keys, webhooks and schemes inside bodies, and the table of all rules.

The rules are written for Playhead from what providers publish about their keys. They favour recall, but exclude ids and prose
that only resemble a key. Values that are secret because of their name are in `named_values`, prefixes in `token_families`.
"""

import re
from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Iterator

from calls.redaction.rules.named_values import NAMED
from calls.redaction.rules.patterns import Either, Part, Repeat, Word
from calls.redaction.rules.secret_rule import (
    ESCAPE,
    LOOKBEHIND,
    End,
    Real,
    SecretRule,
    end_of_run,
    is_long,
    is_random,
    reject_replaced,
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
"""Google's Slovak voices, which begin like a key: `sk-SK-Chirp3-HD-Achernar`."""


def is_in_base64(before: bytes) -> bool:
    """Return whether the text ends inside base64.

    Images and encrypted reasoning contain `-sk-` and `/AIza` by chance, 1 of 900 blobs of 4 KB. A path or a name before a
    key consists of words, with few or no capitals.
    """
    before = before[-_BLOB:]
    if _OPAQUE.fullmatch(before) is None:
        return False
    return len(_UPPER.findall(before)) >= 8 and len(_LOWER.findall(before)) >= 8 and _DIGIT.search(before) is not None


def _reject_words(prefixes: str, real: Real) -> Real:
    """Reject words for the few prefixes with which words begin too."""
    if prefixes not in ("sk-", "pa-", "re_"):
        return real
    words = _VOICES if prefixes == "sk-" else _WORDS
    return lambda data, lead, start, stop: real(data, lead, start, stop) and not words.fullmatch(data, start, stop)


def _is_jose(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """Return whether this is a signed or encrypted JSON object: at least a header and a payload, separated by a dot."""
    return _JOSE.match(data, start, stop) is not None


@reject_replaced
def _is_pem(data: bytes, _lead: int, start: int, stop: int) -> bool:
    return _BASE64.search(data, start, stop) is not None


@reject_replaced
def _is_before_at(data: bytes, _lead: int, _start: int, stop: int) -> bool:
    return data[stop : stop + 1] == b"@"


def _is_basic(data: bytes, _lead: int, start: int, stop: int) -> bool:
    """Return whether this is `name:password` in base64 (RFC 7617)."""
    try:
        return b":" in b64decode(data[start:stop], validate=True)
    except NotBase64:
        return False


_PEM_END = re.compile(rb"-----|[\"'<]")


def _pem_end(data: bytes, at: int) -> int:
    found = _PEM_END.search(data, at)
    return found.start() if found else len(data)


def _putty_end(data: bytes, at: int) -> int:
    found = _PUTTY_END.search(data, at)
    return found.start() if found else len(data)


_PUTTY_END = re.compile(rb"(?:\s|\\[rn])*(?:Private-MAC|Private-Hash|[^A-Za-z0-9+/=\s\\]|\Z)")


_PUTTY_MAC_LENGTHS = (40, 64)
"""HMAC with SHA-1 in files of versions 1 and 2, with SHA-256 in those of version 3."""

_BEGIN_LENGTH = 6
"""Characters of a secret that the expression matches; `is_real` checks the length. Counting is expensive in an automaton."""

_WORD = "A-Za-z0-9_\\-"
_ALNUM = "A-Za-z0-9"


def _prefix_rules() -> Iterator[SecretRule]:
    for prefixes, chars, least in PREFIXES:
        begin = (Word(tuple(prefixes.split())), Repeat(f"[{chars}]", _BEGIN_LENGTH, _BEGIN_LENGTH))
        yield SecretRule(
            kind="T",
            begin=begin,
            end=end_of_run(chars),
            is_real=_reject_words(prefixes, is_random(least)),
            is_outside_base64=True,
        )


def _short_cbor_rule(header: str, prefixes: tuple[str, ...], chars: str) -> SecretRule:
    size = ord(header) & 0x1F
    return SecretRule(
        kind="T",
        lead=(Word((header,)),),
        begin=(Word(prefixes), Repeat(f"[{chars}]", _BEGIN_LENGTH, _BEGIN_LENGTH)),
        end=end_of_run(f"{chars}_", size),
        is_real=lambda _data, _lead, start, stop: stop - start == size,
        is_bounded=False,
        is_outside_base64=True,
    )


_OTHER_TOKENS = (
    SecretRule(
        kind="T",
        begin=(Word(("AKIA", "ASIA", "ABIA", "ACCA")), Repeat("[A-Z0-9]", _BEGIN_LENGTH, _BEGIN_LENGTH)),
        end=end_of_run("A-Za-z0-9_"),
        is_real=lambda _data, _lead, start, stop: stop - start == 20,
        is_outside_base64=True,
    ),
    SecretRule(
        kind="T",
        begin=(Word(("eyJ",)), Repeat(f"[{_WORD}]", _BEGIN_LENGTH, _BEGIN_LENGTH)),
        end=end_of_run("A-Za-z0-9_.=\\-"),
        is_real=_is_jose,
    ),
    # In CBOR, the header of such a short string is a letter.
    _short_cbor_rule("t", ("AKIA", "ASIA", "ABIA", "ACCA"), "A-Z0-9"),
    _short_cbor_rule("w", ("sm_aat_", "sm_pat_", "sm_sat_"), _ALNUM),
    SecretRule(
        kind="P",
        lead=(
            Word(("-----BEGIN ",)),
            Repeat("[A-Z ]", 0, 20),
            Word(("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----")),
        ),
        end=lambda _data, _at: _pem_end,
        is_real=_is_pem,
        is_bounded=False,
    ),
    SecretRule(
        kind="P",  # PuTTY: who knows the rest of the file can test guesses at the passphrase with it
        lead=(Word(("Private-MAC: ", "Private-Hash: ")),),
        begin=(Repeat("[0-9a-f]", _BEGIN_LENGTH, _BEGIN_LENGTH),),
        end=end_of_run("0-9a-f"),
        is_real=lambda _data, _lead, start, stop: stop - start in _PUTTY_MAC_LENGTHS,
        is_bounded=False,
    ),
    SecretRule(
        kind="P",  # PuTTY
        lead=(Word(("Private-Lines: ",)), Repeat("[0-9]", 1, 4), Repeat(r"[\r\n\\rn]", 1, 8)),
        end=lambda _data, _at: _putty_end,
        is_real=_is_pem,
        is_bounded=False,
    ),
)


def _shape_rule(
    begin: tuple[Part, ...], chars: str, shape: bytes, *, lead: tuple[Part, ...] = (), bounded: bool = False
) -> SecretRule:
    """Make a rule for tokens with their mark in the middle, or with a prefix too short to recognise them by."""
    match = re.compile(shape).match

    def is_real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        return match(data, start, stop) is not None and _DIGIT.search(data, start, stop) is not None

    return SecretRule(
        kind="T",
        lead=lead,
        begin=begin,
        end=end_of_run(chars),
        is_real=is_real,
        is_bounded=bounded or not lead,
        is_outside_base64=True,
    )


def _repeat(chars: str, count: int, most: int | None = None) -> Repeat:
    return Repeat(f"[{chars}]", count, most or count)


def _exact_test(shape: str) -> Real:
    fullmatch, is_no_word = re.compile(shape.encode()).fullmatch, is_random(0)

    def is_real(data: bytes, lead: int, start: int, stop: int) -> bool:
        return fullmatch(data, start, stop) is not None and is_no_word(data, lead, start, stop)

    return is_real


# The characters of base64 belong to the word, so that a part of base64 is no token; but in a path or query a slash ends it.
_BLOB_END = end_of_run("A-Za-z0-9+/=_\\-", 500)
_PART_END = end_of_run("A-Za-z0-9+=_\\-", 500)


def _exact_end(data: bytes, at: int) -> End:
    return (_PART_END if data[at - 1 : at] in (b"/", b"=") else _BLOB_END)(data, at)


def _exact_rules() -> Iterator[SecretRule]:
    for prefix, rest in EXACT:
        begin = (Word((prefix,)), _repeat(_WORD, _BEGIN_LENGTH))
        yield SecretRule(
            kind="T", begin=begin, end=_exact_end, is_real=_exact_test(prefix + rest), is_outside_base64=True
        )


_SHAPE_RULES = (
    *_exact_rules(),
    # Mailchimp: the data centre, and 28 of 32 hexadecimal digits, because words may begin with four of them
    _shape_rule(
        (_repeat("a-f0-9", 28), Word(("-us",)), _repeat("0-9", 1)),
        "a-z0-9\\-",
        rb"[a-f0-9]{28}-us\d{1,2}\b",
        lead=(_repeat("a-f0-9", 4),),
        bounded=True,
    ),
    # Terraform Cloud, after the token's id; ClickUp
    _shape_rule((_repeat(_WORD, 6),), "A-Za-z0-9_=\\-", rb"[\w=-]{50}", lead=(Word((".atlasv1.",)),)),
    _shape_rule(
        (Word(("pk_",)), _repeat("0-9", 6, 10), Word(("_",)), _repeat("A-Z0-9", 6)),
        "A-Z0-9_pk",
        rb"pk_\d+_[A-Z0-9]{30}",
    ),
    # OpenShift
    _shape_rule((Word(("sha256",)), _repeat("~", 1), _repeat(_WORD, 6)), "A-Za-z0-9_~\\-", rb"sha256~[\w-]{40}"),
    # Vault's old service tokens; Harness
    _shape_rule(
        (Word(("s.",)), _repeat(_ALNUM, 6)), _ALNUM + ".", rb"s\.(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{24}\b"
    ),
    _shape_rule(
        (Word(("pat.", "sat.")), _repeat(_WORD, 22), Word((".",)), _repeat(_ALNUM, 6)),
        "A-Za-z0-9_.\\-",
        rb"[ps]at\.[\w-]{22}\.\w{24}\.\w{20}",
    ),
    # Authress
    _shape_rule(
        (Word(("sc_", "ext_", "scauth_", "authress_")), _repeat("a-z0-9", 5, 30), Word((".",)), _repeat("a-z0-9", 4)),
        "A-Za-z0-9_.+/=\\-",
        rb"\w+\.[a-z0-9]{4,6}\.acc[_-][a-z0-9-]{10,32}\.[\w+/=-]{30}",
    ),
)


def _suffix_rule(lead: tuple[Part, ...], chars: str, shape: bytes, *, before: bytes = b"") -> SecretRule:
    """Make a rule for tokens that begin with the id of a user, a bot or the token itself, which is not secret.

    The id is kept. Otherwise every word and number at the end of a piece might begin a token and would have to be held back.
    `shape` is the expression for the secret, `before` for the text before it if the lead is not at the start of a word.
    """
    is_led, is_shaped = re.compile(before + rb"\Z").search, re.compile(shape).match

    def is_real(data: bytes, _lead: int, start: int, stop: int) -> bool:
        return is_shaped(data, start, stop) is not None and is_led(data, max(0, start - LOOKBEHIND), start) is not None

    return SecretRule(
        kind="T",
        lead=lead,
        begin=(_repeat(chars, _BEGIN_LENGTH),),
        end=end_of_run(chars),
        is_real=reject_replaced(is_real),
        is_bounded=not before,
        is_outside_base64=True,
    )


_ASANA_USER = (Word(("/",)), _repeat("0-9", 12, 20))
_SUFFIX_RULES = (
    # Airtable: the token's id, 64 hexadecimal digits
    _suffix_rule((Word(("pat",)), _repeat(_ALNUM, 14), Word((".",))), "a-f0-9", rb"[a-f0-9]{64}"),
    # Asana: a version, one or two users, 32 hexadecimal digits
    _suffix_rule(
        (_repeat("12", 1), *_ASANA_USER, Either(((Word((":",)),), (*_ASANA_USER, Word((":",)))))),
        "a-f0-9",
        rb"[a-f0-9]{32}\b",
    ),
    # Discord: a user's id in base64, a time, a signature
    _suffix_rule(
        (Word((".",)), _repeat(_WORD, 6), Word((".",))),
        _WORD,
        rb"[\w-]{25}",
        before=rb"[MNO][\w-]{22,27}\.[\w-]{6}\.",
    ),
    # Telegram: a bot's id
    _suffix_rule((_repeat("0-9", 8, 10), Word((":AA",))), ":" + _WORD, rb"[\w-]{33}"),
    # Zhipu: the key's id
    _suffix_rule(
        (_repeat("a-f0-9", 32), Word((".",))),
        _ALNUM,
        rb"(?=[a-z0-9]*[A-Z])(?=[A-Z0-9]*[a-z])[A-Za-z0-9]{16}\b",
    ),
    # Azure AD: three characters, which Microsoft shows as the secret's hint, a digit and a mark
    _suffix_rule(
        (_repeat("0-9", 1), Word(("Q",)), _repeat("~", 1)),
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
    begin=(Repeat(f"[{_WORD}/\\\\:]", _BEGIN_LENGTH, _BEGIN_LENGTH),),
    end=end_of_run(f"{_WORD}/\\\\:@"),
    is_real=reject_replaced(is_long(16)),
)

_HEADER_CHARS = "A-Za-z0-9._~+/=\\-"
_SCHEMES = (
    SecretRule(
        kind="A",
        lead=(Word(("bearer",), nocase=True), Repeat("[ +]", 1, 4)),
        begin=(Repeat(f"[{_HEADER_CHARS}]", _BEGIN_LENGTH, _BEGIN_LENGTH),),
        end=end_of_run(_HEADER_CHARS),
        is_real=reject_replaced(is_long(12)),
    ),
    SecretRule(
        kind="A",
        lead=(Word(("basic",), nocase=True), Repeat("[ +]", 1, 4)),
        begin=(Repeat("[A-Za-z0-9+/=]", _BEGIN_LENGTH, _BEGIN_LENGTH),),
        end=end_of_run("A-Za-z0-9+/="),
        is_real=_is_basic,
    ),
)

_USERINFO_CHARS = r"^\s/:@\"'<>\\?#"
_USERINFO = SecretRule(
    kind="U",
    lead=(Word(("://",)), Repeat(f"[{_USERINFO_CHARS}]", 0, 64), Word((":",))),
    end=end_of_run(_USERINFO_CHARS),
    is_real=_is_before_at,
    is_bounded=False,
)

_UNKNOWN_SCHEME = SecretRule(
    kind="A",  # an unknown scheme, or none: `Authorization: Token …`, `Authorization: ApiKey …`
    lead=(
        Word(("authorization",), nocase=True),
        Repeat("[:= ]", 1, 3),
        Repeat("[A-Za-z0-9-]", 3, 20),
        Repeat(" ", 1, 1),
    ),
    begin=(Repeat(f"[{_HEADER_CHARS}]", _BEGIN_LENGTH, _BEGIN_LENGTH),),
    end=end_of_run(_HEADER_CHARS),
    is_real=reject_replaced(is_long(12)),
)

RULES: tuple[SecretRule, ...] = (
    *_prefix_rules(),
    *_OTHER_TOKENS,
    *_SHAPE_RULES,
    *_SUFFIX_RULES,
    _HOOK,
    _UNKNOWN_SCHEME,
    *NAMED,
    *_SCHEMES,
    _USERINFO,
)
