"""A witness that follows C2SP tlog-witness to the letter, and a timestamp authority around `openssl ts`, each on a port of loopback."""

import base64
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from calls.proof.checkpoint import VerifierKey, cosign, parse_note
from calls.proof.tree import is_consistent
from store.anchors.targets import TimestampTarget, WitnessTarget

WITNESS_TIME = 1_795_392_000
"""What the clock of the witness shows."""


class Reply(NamedTuple):
    """A response of HTTP."""

    status: int
    content: bytes = b""
    kind: str = "text/plain"


@contextmanager
def serving(answer: Callable[[str, bytes], Reply]) -> Iterator[str]:
    """Serve POST requests on a port of loopback; `answer` gets the path and the body. Yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reply = answer(self.path, self.rfile.read(int(self.headers["content-length"])))
            self.send_response(reply.status)
            self.send_header("content-type", reply.kind)
            self.send_header("content-length", str(len(reply.content)))
            self.end_headers()
            self.wfile.write(reply.content)

        def log_message(self, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@dataclass(slots=True)
class SpecWitness:
    """A witness in memory. https://c2sp.org/tlog-witness, the order of its checks included."""

    logs: dict[str, VerifierKey]
    """The key of each origin that it knows."""

    name: str = "witness.example.com/w1"
    key: Ed25519PrivateKey = field(default_factory=lambda: Ed25519PrivateKey.from_private_bytes(bytes(range(7, 39))))
    known: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    """The size and root that it has signed last, by origin."""

    requests: list[bytes] = field(default_factory=list)

    def target(self, url: str) -> WitnessTarget:
        """Return how to ask it."""
        return WitnessTarget(url=url, key=str(self.verifier_key))

    @property
    def verifier_key(self) -> VerifierKey:
        """Its public key."""
        return VerifierKey(self.name, self.key.public_key().public_bytes_raw(), "witness")

    def answer(self, path: str, body: bytes) -> Reply:
        """Answer a request."""
        self.requests.append(body)
        if path != "/add-checkpoint":
            return Reply(404)
        head, _, note_text = body.partition(b"\n\n")
        old_line, *lines = head.decode("ascii").split("\n")
        assert old_line.startswith("old ")
        assert len(lines) <= 63
        old, proof = int(old_line.removeprefix("old ")), [base64.b64decode(line, validate=True) for line in lines]
        note = parse_note(note_text.decode())
        checkpoint = note.checkpoint
        if (key := self.logs.get(checkpoint.origin)) is None:
            return Reply(404)
        if not note.is_signed_by(key):
            return Reply(403)
        if old > checkpoint.size:
            return Reply(400)
        size, root = self.known.get(checkpoint.origin, (0, b""))
        if old != size:
            return Reply(409, f"{size}\n".encode(), "text/x.tlog.size")
        if old == checkpoint.size and root != checkpoint.root:
            return Reply(409, f"{size}\n".encode(), "text/x.tlog.size")
        if old == 0 and proof:
            return Reply(422)
        if old > 0 and not is_consistent(old, root, checkpoint.size, checkpoint.root, proof):
            return Reply(422)
        self.known[checkpoint.origin] = (checkpoint.size, checkpoint.root)
        return Reply(200, cosign(note.text, self.name, self.key, WITNESS_TIME).encode())


OPENSSL_CONFIG = """
[ req ]
distinguished_name = name
prompt = no
[ name ]
CN = {name}
[ root ]
basicConstraints = critical,CA:true
keyUsage = critical,keyCertSign
[ leaf ]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
[ tsa ]
default_tsa = local
[ local ]
serial = serial
signer_cert = {leaf}.pem
signer_key = {leaf}.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
ess_cert_id_alg = sha256
"""


class OpensslAuthority:
    """An authority with a root of its own, whose answers `openssl ts` makes."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        if shutil.which("openssl") is None:
            raise FileNotFoundError("openssl")
        (directory / "serial").write_text("01\n")
        (directory / "tsa.conf").write_text(OPENSSL_CONFIG.format(name="A test authority", leaf="leaf"))
        self._run(
            "req",
            "-x509",
            *NEW_KEY,
            "root.key",
            "-out",
            "root.pem",
            "-days",
            "9",
            "-subj",
            "/CN=root",
            *CONFIG,
            "-extensions",
            "root",
        )
        self._run("req", *NEW_KEY, "leaf.key", "-out", "leaf.csr", *CONFIG)
        self._run(
            *(
                "x509",
                "-req",
                "-in",
                "leaf.csr",
                "-CA",
                "root.pem",
                "-CAkey",
                "root.key",
                "-out",
                "leaf.pem",
                "-days",
                "8",
            ),
            *("-extfile", "tsa.conf", "-extensions", "leaf"),
        )

    @property
    def roots(self) -> str:
        """Its root certificate."""
        return (self._directory / "root.pem").read_text()

    def target(self, url: str) -> TimestampTarget:
        """Return how to ask it."""
        return TimestampTarget(url=url, roots=self.roots)

    def answer(self, _path: str, body: bytes) -> Reply:
        """Answer a request."""
        (self._directory / "query").write_bytes(body)
        self._run("ts", "-reply", "-queryfile", "query", "-out", "response", "-config", "tsa.conf")
        return Reply(200, (self._directory / "response").read_bytes(), "application/timestamp-reply")

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._directory, check=True, capture_output=True)


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")
CONFIG = ("-config", "tsa.conf")
