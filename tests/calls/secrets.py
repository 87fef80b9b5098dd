"""Made-up credentials, one of every kind that the rules know, and what only looks like one. None was ever valid."""

import base64

from hypothesis import strategies as st

KEY = b"a key for tests, thirty-two bytes"

_HEX = "0123456789abcdef" * 8
_MIXED = "aB3dE6gH9jK2mN5pQ8rS1tU4vW7xY0zA" * 6


def _mixed_letters(size: int) -> str:
    return _MIXED[:size]


TOKENS: tuple[str, ...] = (
    f"sk-{_mixed_letters(48)}",
    f"sk-proj-{_mixed_letters(60)}-{_mixed_letters(20)}_x9",
    f"sk-ant-api03-{_mixed_letters(80)}-AA",
    f"sk-or-v1-{_HEX[:64]}",
    f"gsk_{_mixed_letters(52)}",
    f"pplx-{_mixed_letters(48)}",
    f"xai-{_mixed_letters(80)}",
    f"r8_{_mixed_letters(37)}",
    f"hf_{_mixed_letters(34)}",
    f"nvapi-{_mixed_letters(64)}",
    f"tgp_v1_{_mixed_letters(43)}",
    f"tvly-{_mixed_letters(32)}",
    f"fc-{_HEX[:32]}",
    f"pa-{_mixed_letters(20)}-{_mixed_letters(22)}",
    f"pcsk_{_mixed_letters(60)}",
    f"lsv2_pt_{_HEX[:32]}_{_HEX[:10]}",
    f"ghp_{_mixed_letters(36)}",
    f"github_pat_{_mixed_letters(22)}_{_mixed_letters(59)}",
    f"glpat-{_mixed_letters(20)}",
    "xoxb-" + "1234567890-1234567890123-" + _mixed_letters(24),
    f"AIzaSy{_mixed_letters(33)}",
    f"IQoJb3JpZ2luX2Vj{_mixed_letters(90)}",
    f"ya29.{_mixed_letters(60)}",
    f"GOCSPX-{_mixed_letters(28)}",
    f"npm_{_mixed_letters(36)}",
    f"pypi-AgEIcHlwaS5vcmc{_mixed_letters(60)}",
    f"SG.{_mixed_letters(22)}.{_mixed_letters(43)}",
    "sk_live_" + _mixed_letters(24),
    "rk_live_" + _mixed_letters(24),
    f"whsec_{_mixed_letters(32)}",
    f"dapi{_HEX[:32]}",
    f"dop_v1_{_HEX[:64]}",
    f"hvs.{_mixed_letters(24)}",
    f"shpat_{_HEX[:32]}",
    f"ATATT3xFf{_mixed_letters(60)}",
    f"ek_{_mixed_letters(32)}",
    f"glsa_{_mixed_letters(32)}_{_HEX[:8]}",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "ASIA" + "QEMAC2MS4BWMXJDU",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{_mixed_letters(43)}",
    f"123456789:AA{_mixed_letters(33)}",
    f"npm_{_mixed_letters(36)}",
    f"openai-insecure-api-key.{_mixed_letters(20)}",
)
"""Are recognised wherever they stand, by themselves."""

KEPT = r"(?:openai-insecure-api-key\.|123456789:AA)?"
"""What stays of some of them, as a regular expression: a prefix, the id of a bot."""

CONTEXTS: tuple[tuple[str, str], ...] = (
    ("<Credentials><SecretAccessKey>", "</SecretAccessKey></Credentials>"),
    ("<ns:Password>", "</ns:Password>"),
    ('{"api_key": "', '"}'),
    ('{"apiKey":"', '","n":1}'),
    ('{"OPENAI_API_KEY" : "', '"}'),
    ('{"db_password": "', '"}'),
    ('{"client_secret":"', '"}'),
    ('{"authorization_token": "', '"}'),
    ('{"authentication":{"type":"api_key","key":"', '"}}'),
    ('{"secret_name":"TOKEN","secret_value":"', '"}'),
    ('{"Authorization":"Bearer ', '"}'),
    ('{"cookie": "', '"}'),
    ('{"arguments": "{\\"password\\": \\"', '\\"}"}'),
    ('{"a": "{\\"b\\": \\"{\\\\\\"secret_key\\\\\\": \\\\\\"', '\\\\\\"}\\"}"}'),
    ("Authorization: Bearer ", "\r\n"),
    ("curl -H 'x-api-key: ", "' https://x"),
    ("export OPENAI_API_KEY=", "\n"),
    ("aws_secret_access_key = ", "\n"),
    ('client = Client(api_key="', '")'),
    ("DefaultEndpointsProtocol=https;AccountKey=", ";EndpointSuffix=core"),
    ("see https://x.example/a?b=1&sig=", "&c=2"),
    ("see https://x.example/a?api_key=", " for more"),
    ("https://x.example/a?b=1\\u0026X-Amz-Signature=", "\\u0026c"),
    ("postgres://user:", "@db.example:5432/x"),
    ('Content-Disposition: form-data; name="api_key"\r\n\r\n', "\r\n--x"),
    ("https://hooks.slack.com/services/T00000000/B00000000/", " "),
    ("https:\\/\\/hooks.slack.com\\/services\\/T00000000\\/B00000000\\/", '"'),
    # Several values under one name
    ('{"api_key": ["', '"]}'),
    ('{"api_keys": ["first", "', '"], "n": 1}'),
    ('{"api_key": {"value": "', '"}}'),
    ('{"password": {"prod": {"eu": "', '"}}}'),
    ('{"a": "{\\"api_key\\": [\\"', '\\"]}"}'),
    ('"cookies":[{"name":"sid","path":"/","value":"', '"}]'),
    # A name beside its value
    ('[{"name": "API_KEY", "value": "', '"}]'),
    ('[{"key": "DB_PASSWORD", "type": "plain", "value": "', '"}]'),
    ('{"headers": [["X-Api-Key", "', '"]]}'),
    ("[('X-Api-Key', '", "')]"),
    ('{"args": ["--password", "', '"]}'),
    ('<add key="Password" value="', '"/>'),
    ('<db password="', '"/>'),
    ('<Password type="text">', "</Password>"),
    # Prose, SQL, options, variables
    ("my password is ", ", keep it"),
    ("The API key is `", "`"),
    ("**Password:** `", "`"),
    ("ALTER USER x WITH PASSWORD '", "'"),
    ("CREATE USER x IDENTIFIED BY '", "'"),
    ("UPDATE t SET api_key = '", "' WHERE id = 1"),
    ("INSERT INTO t (id, api_key, at)\\n VALUES (1, '", "', '2024-01-01')"),
    ("tool --password ", " --verbose"),
    ("tool --api-key=", " x"),
    ("curl -u me:", " https://x.example"),
    ("Cookie: session=", "\r\n"),
    ("Authorization: Token ", "\r\n"),
    ("password: ", "\nuser: me"),
    ('password = "', '"'),
    ("STRIPE_KEY=", "\n"),
    ("'password' => '", "'"),
    ('password := "', '"'),
    ("\x1b[31mpassword=", "\x1b[0m"),
)
"""Make a secret of what stands between, whatever it looks like."""

SECRETS: tuple[str, ...] = (
    "hunter2hunter2",
    _mixed_letters(32),
    _HEX[:40],
    "correct0horse1battery2staple3",
    "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12",
)

PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join(_mixed_letters(64) for _ in range(24))
    + "\n-----END RSA PRIVATE KEY-----\n"
)

HARMLESS: tuple[str, ...] = (
    "grant_type=password&password=<PASSWORD>&username=<USERNAME>",
    '{"voice": {"languageCode": "sk-SK", "name": "sk-SK-Chirp3-HD-Achernar"}}',
    "/docs/pa-2024-04-12-release-notes-for-the-quarterly-update-of-things",
    "/fc-barcelona-2024-season-tickets-are-now-available",
    '{"id": "chatcmpl-BCeXVv4rJzx5mvvVxqmVQGWJYTGDB", "system_fingerprint": "fp_eb9dce56a8"}',
    '{"id": "call_yMm1Z2Jp8qTz5nXvLr3KQwEs", "tool_call_id": "call_0123456789abcdefghijklmn"}',
    '{"id": "toolu_01A09q90qw90lq917835lq9", "id2": "msg_01XFDUDYJgAACzvnptvVoYEL"}',
    '{"id": "resp_68a1b2c3d4e5f60718293a4b5c6d7e8f", "item": "rs_0123456789abcdef", "fc": "fc_68ab01"}',
    '{"max_tokens": 100, "prompt_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 0}}',
    '{"token": "Hello", "logprob": -0.31, "bytes": [72, 101], "top_logprobs": [{"token": " world"}]}',
    '{"prompt_cache_key": "agents-sdk:run:0123456789abcdef0123456789abcdef", "key": "value"}',
    '{"properties": {"password": {"type": "string"}, "api_key": {"type": "string"}}, "required": ["password"]}',
    '{"api_key": null, "password": "", "secret": "${SECRET}", "client_secret": "<your secret>"}',
    "The task-based, risk-averse approach: ask-me-anything-about-sk-learn-and-friends.",
    "Basic knowledge of the bearer of bad news; a secret: the cake is a lie; password: choose wisely",
    "http://localhost:8080/v1?page=2&key=name&limit=10 and mailto:someone@example.com",
    "key-value pairs, pa-per, fc-barcelona, https://example.com:443/path@v1.2.3?at=@",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUBLIC KEY-----",
    "starts with -----BEGIN PRIVATE KEY----- and goes on with words, words, words. And the rest.",
    "eyJhbGciOiJIUzI1NiJ9 is a header without a payload; eyJ.eyJ is nothing",
    "x-amzn-requestid: 0123; next_page_token: abc; AKIA is a prefix; AKIAIOSFODNN7EXAMPLETOOLONG1234",
    '{"text": "Put it in <password> tags, or write <api_key>${KEY}</api_key>. </password>then <b>"}',
    '{"properties": {"password": {"type": "string", "description": "8 to 64 characters"}}}',
    '{"required": ["api_key", "password", "oauth2_token", "x5t-s256"], "password": ["This field is required."]}',
    '{"secrets": {"id": "sec_0123456789", "created_at": "2024-01-01T00:00:00Z", "name": "prod2024key"}}',
    '{"tokens": ["Hello", " world", "2024"], "keys": ["id", "created_at", "sha256_sum"]}',
    "What the password is for: the token is of type 2. passwordless and passwords and api keys are words.",
    "INSERT INTO t (id, password) VALUES (1, NULL)",
    "--password-file /run/secrets/x --token-limit 4096 --max-tokens 1000",
    "sk_learn_and_others_2024 re_read_this_2024_please pat.search e2b_tests dose 0123 API-2024",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJ",
)


def in_base64(text: str, *, lines: int = 0, url_safe: bool = False, padded: bool = True) -> str:
    """The text in base64, perhaps in lines, as JSON would write them."""
    data = (base64.urlsafe_b64encode if url_safe else base64.b64encode)(text.encode()).decode()
    data = data if padded else data.rstrip("=")
    return "\\n".join(data[at : at + lines] for at in range(0, len(data), lines)) if lines else data


def in_escapes(text: str, *, percent: bool = False) -> str:
    """The text with each of its characters escaped."""
    return "".join(f"%{ord(char):02X}" if percent else f"\\u{ord(char):04x}" for char in text)


_ENCODED = (
    in_base64(f"export KEY={TOKENS[0]}\nand more"),
    in_base64(f"é{TOKENS[16]} {'words ' * 12}", url_safe=True, padded=False),
    in_base64(f"# {'words ' * 20}\npassword = '{SECRETS[1]}'\n", lines=60),
    in_base64(in_base64(f'{{"api_key": "{SECRETS[3]}"}}')),
    in_base64("nothing in it but text, and a little more of it"),
    in_base64("????>>>>" + TOKENS[3]).replace("/", "\\/"),
    in_escapes(TOKENS[16]),
    in_escapes(TOKENS[16][:9], percent=True) + TOKENS[16][9:],
    '{"api\\u005fkey": "' + SECRETS[0],
    "\\u0041\\\\u003d%41",
)

_PIECES = (*_ENCODED, *TOKENS, *SECRETS, *HARMLESS, *(part for pair in CONTEXTS for part in pair), PEM, PEM[:90])
_GLUE = (
    '"',
    "'",
    "\\",
    "\\n",
    "\\\\",
    "\\u0026",
    " ",
    "\n",
    "&",
    "?",
    "=",
    ":",
    ";",
    "-",
    "_",
    "/",
    "@",
    "é",
    "\0",
    "%3D",
)
_TAILS = (
    "sk-",
    "s",
    '"api',
    '"password',
    '"password": ',
    "Bear",
    "Bearer ",
    "-----BEG",
    "eyJ",
    "AK",
    "http://u:",
    _ENCODED[0][:30],
    "\\u00",
    "%4",
    "x" * 9000,
)

noise = st.one_of(st.sampled_from(_GLUE + _TAILS), st.text(max_size=4), st.sampled_from(_PIECES))

_made = st.lists(noise, max_size=12).map(lambda parts: "".join(parts).encode())
_broken = st.tuples(_made, st.integers(0, 200), st.binary(max_size=3)).map(lambda t: t[0][: t[1]] + t[2] + t[0][t[1] :])
bodies = st.one_of(_made, _broken, st.binary(max_size=60))
"""Bytes in which secrets, their contexts, pieces of both and harmless things lie next to each other."""
