"""A gRPC server over TLS and HTTP/2, with a certificate from a private CA. Each answer is different."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import grpc
import trustme

METHOD = "/playhead.Ticket/Refund"


@dataclass
class GrpcServer:
    """The server's address, its CA, and the number of calls."""

    port: int
    authority: Path
    calls: int = 0


@contextmanager
def serving_grpc(place: Path, name: str) -> Iterator[GrpcServer]:
    """Serve one unary method while the block runs."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(place / "grpc-ca.pem")
    certificate = authority.issue_cert(name, "127.0.0.1")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    with ThreadPoolExecutor(2) as pool:
        server = grpc.server(pool)
        credentials = grpc.ssl_server_credentials([(certificate.private_key_pem.bytes(), chain)])
        serving = GrpcServer(server.add_secure_port("127.0.0.1:0", credentials), place / "grpc-ca.pem")
        numbers = count(1)

        def refund(request: bytes, context: grpc.ServicerContext) -> bytes:
            serving.calls = next(numbers)
            context.set_trailing_metadata((("refund-number", str(serving.calls)),))
            return b"\n" + bytes([len(request) + 7]) + b"answer " + request

        service, method = METHOD[1:].split("/")
        handler = grpc.unary_unary_rpc_method_handler(refund)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.start()
        try:
            yield serving
        finally:
            server.stop(0).wait()
