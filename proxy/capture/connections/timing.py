"""How long a captured client may be silent before its server is asked whether it speaks first."""

from typing import Final

SERVER_SPEAKS_FIRST: Final = frozenset(
    {21, 22, 23, 25, 110, 143, 587, 2222, 2525, 3306, 3307, 4222, 5900, 5901, 6600, 6667, 33060}
)
"""Ports of protocols in which the server speaks first: FTP, SSH, Telnet, SMTP, POP3, IMAP, MySQL, NATS, VNC, MPD, IRC."""

CLIENT_SPEAKS_FIRST: Final = frozenset({80, 443, 3000, 5000, 8000, 8008, 8080, 8443, 8888, 11434})
"""Ports of HTTP and HTTPS: a client that connects early, before it has a request, is common there."""

TLS_WITHOUT_HTTP: Final = frozenset({465, 636, 853, 989, 990, 992, 993, 994, 995, 5061, 5671, 6380, 6697, 8883})
"""Ports of other protocols within TLS: SMTPS, LDAPS, DNS, FTPS, IMAPS, POP3S, SIPS, AMQPS, Redis, IRCS, MQTTS."""

SILENT_FOR: Final = 0.03
"""Seconds that a client may be silent on any other port. Those that speak first do so within a round trip on loopback."""

SILENT_WITH_HTTP: Final = 1.0
"""Seconds that it may be silent on a port of HTTP. Nothing is lost by waiting: it is not decided by time who speaks first."""

REFUSED_AFTER: Final = 1.0
"""Seconds after which a silent client is refused where no server may be asked."""

UNDECIDED_FOR: Final = 10.0
"""Seconds that a client may take for its request line or its ClientHello; then it is passed on as it is, or refused."""


def ask_server_after(port: int) -> float:
    """Seconds of silence after which the server is connected to."""
    if port in SERVER_SPEAKS_FIRST:
        return 0.0
    return SILENT_WITH_HTTP if port in CLIENT_SPEAKS_FIRST else SILENT_FOR


def refuse_after(port: int, head: float) -> float:
    """Seconds of silence after which a client is refused; `head` is what a client of HTTP has for its request."""
    if port in SERVER_SPEAKS_FIRST:
        return 0.0
    return head if port in CLIENT_SPEAKS_FIRST else REFUSED_AFTER
