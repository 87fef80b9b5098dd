"""How long a captured client may be silent before its server is connected to, or it is refused."""

from typing import Final

SERVER_SPEAKS_FIRST: Final = frozenset(
    {21, 22, 23, 25, 110, 143, 587, 2222, 2525, 3306, 3307, 4222, 5900, 5901, 6600, 6667, 33060}
)
"""Ports of protocols in which the server speaks first: FTP, SSH, Telnet, SMTP, POP3, IMAP, MySQL, NATS, VNC, MPD, IRC."""

CLIENT_SPEAKS_FIRST: Final = frozenset({80, 443, 3000, 5000, 8000, 8008, 8080, 8443, 8888, 11434})
"""Ports of HTTP and HTTPS, where clients often connect before they have a request."""

TLS_WITHOUT_HTTP: Final = frozenset({465, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 5671, 6380, 6697, 8883})
"""Ports of other protocols within TLS: SMTPS, LDAPS, DNS, FTPS, IMAPS, POP3S, SIPS, AMQPS, Redis, IRCS, MQTTS."""

SILENT_FOR: Final = 0.03
"""Seconds that a client may be silent on other ports. A client that speaks first does so within a loopback round trip."""

SILENT_WITH_HTTP: Final = 1.0
"""Seconds that a client may be silent on a port of HTTP."""

REFUSED_AFTER: Final = 1.0
"""Seconds after which a silent client is refused if its server may not be contacted."""

UNDECIDED_FOR: Final = 10.0
"""Seconds that a client may take for its request line or ClientHello. Then it passes undecoded, or is refused."""


def silence_before_connecting(port: int) -> float:
    """Return how many seconds a client may be silent before its server is connected to, to see whether that speaks first."""
    if port in SERVER_SPEAKS_FIRST:
        return 0.0
    return SILENT_WITH_HTTP if port in CLIENT_SPEAKS_FIRST else SILENT_FOR


def silence_before_refusing(port: int, head: float) -> float:
    """Return how many seconds a client may be silent before it is refused. `head`: the limit for an HTTP request's head."""
    if port in SERVER_SPEAKS_FIRST:
        return 0.0
    return head if port in CLIENT_SPEAKS_FIRST else REFUSED_AFTER
