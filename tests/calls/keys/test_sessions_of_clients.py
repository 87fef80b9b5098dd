"""A session or an id that a client draws for itself is in no key; whatever else it asks is."""

from collections.abc import Iterator

import pytest

from calls.keys.key import make_key
from calls.model import Request
from tests.calls.sample_requests import PROFILES, json_request, request

SPACE = "https://abidlabs-whisper.hf.space"
COMFYUI = "http://127.0.0.1:8188"


def requests_of(session: str, asked: str) -> Iterator[Request]:
    """Requests that a client sends in this session."""
    for prefix in ("", "/gradio_api"):
        yield json_request(f"{SPACE}{prefix}/queue/join", {"data": [asked], "fn_index": 0, "session_hash": session})
        yield request(f"{SPACE}{prefix}/queue/data?session_hash={session}&x={asked}", method="GET")
    yield json_request(f"{SPACE}/gradio_api/cancel", {"session_hash": session, "fn_index": 1, "event_id": asked})
    yield request(f"{COMFYUI}/ws?clientId={session}&x={asked}", method="GET")
    yield json_request(f"{COMFYUI}/prompt", {"prompt": {"3": {"class_type": asked}}, "client_id": session})
    yield request(f"https://{asked}.hf.space/gradio_api/heartbeat/{session}", method="GET")
    yield request(f"https://{asked}.hf.space/heartbeat/{session}", method="GET")


FIRST, SECOND = "a1fe8d86-2722-484b-92a5-94b09c3b807d", "d559f69f-7e1d-4c6e-8b32-ab36a45d24e0"


@pytest.mark.parametrize(
    ("one", "same", "other"),
    [*zip(requests_of(FIRST, "a"), requests_of(SECOND, "a"), requests_of(FIRST, "b"), strict=True)],
    ids=lambda asked: asked.url[-40:],
)
def test_a_session_of_the_client_does_not_count(one: Request, same: Request, other: Request) -> None:
    key, same_key, other_key = (make_key(asked, PROFILES).key for asked in (one, same, other))
    assert key == same_key
    assert key != other_key


@pytest.mark.parametrize("path", ["/heartbeat/agent-{}", "/queue/{}", "/api/kernels/{}/interrupt"])
def test_what_only_looks_like_it_counts(path: str) -> None:
    one, other = (request(SPACE + path.format(name), method="GET") for name in ("a1", "b2"))
    assert make_key(one, PROFILES).key != make_key(other, PROFILES).key


MILVUS = "http://127.0.0.1:19530/milvus.proto.milvus.MilvusService"


def grpc_request(method: str, asked: bytes) -> Request:
    message = b"\0" + len(asked).to_bytes(4) + asked
    return request(f"{MILVUS}/{method}", message, ("content-type", "application/grpc"))


def test_what_a_client_of_milvus_reports_about_itself_does_not_count() -> None:
    """Its time, for example, in the seventh field of what it sends when it connects."""
    first, second = b"2026-11-27 10:09:41.123", b"2026-11-27 10:09:58.456"
    keys = {
        method: [make_key(grpc_request(method, asked), PROFILES).key for asked in (first, second)]
        for method in ("Connect", "Search")
    }
    assert keys["Connect"][0] == keys["Connect"][1] != keys["Search"][0]
    assert keys["Search"][0] != keys["Search"][1]
