"""Tokens by which a service recognises a repeated request are made anew for each request, and are in no key.

AWS's service models say which members these are: SDKs fill them in with a UUID if the program does not.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

from calls.keys.key import make_key
from tests.calls.sample_requests import PROFILES, key, request

if TYPE_CHECKING:
    from botocore.model import OperationModel, Shape

PROTOCOLS = frozenset(("json", "rest-json", "query", "ec2"))
"""Those whose bodies are read: of XML and CBOR the bytes count."""

GIVEN_BY_THE_PROGRAM = frozenset(
    {
        ("athena", "DeleteNamedQuery"),
        ("athena", "StopQueryExecution"),
        ("chime-sdk-messaging", "ChannelFlowCallback"),
        ("elementalinference", "AssociateFeed"),
        ("elementalinference", "DisassociateFeed"),
    }
)
"""Operations whose token names what exists already."""


@lru_cache(1)
def session() -> Any:
    import botocore.session

    return botocore.session.get_session()


def example(shape: "Shape", token_names: frozenset[str], token: str, depth: int = 0) -> Any:
    """A value of this shape with its required members only, and the tokens."""
    described: Any = shape
    match shape.type_name:
        case "structure" if depth < 6:
            return {
                name: token if name in token_names else example(member, frozenset(), token, depth + 1)
                for name, member in described.members.items()
                if name in token_names or name in described.required_members
            }
        case "list" if depth < 6:
            return [example(described.member, frozenset(), token, depth + 1)]
        case "structure" | "list" | "map":
            return [] if shape.type_name == "list" else {}
        case "string":
            return described.enum[0] if described.enum else "some"
        case "boolean":
            return True
        case "blob":
            return b"some"
        case _:
            return 1_700_000_000


def key_with(operation: "OperationModel", protocol: str, token: str) -> str:
    """The key of a request as botocore sends it, with this token."""
    from botocore.serialize import create_serializer

    given = example(operation.input_shape, frozenset(operation.idempotent_members), token)
    sent: Any = create_serializer(protocol, include_validation=False).serialize_to_request(given, operation)
    is_json = "json" in protocol
    body = sent["body"] if isinstance(sent["body"], bytes) else urlencode(sent["body"]).encode()
    url = f"https://{operation.service_model.endpoint_prefix}.us-east-1.amazonaws.com{sent['url_path']}"
    query = urlencode(sent["query_string"]) if sent["query_string"] else ""
    media = "application/json" if is_json else "application/x-www-form-urlencoded; charset=utf-8"
    headers = {**{name: str(value) for name, value in sent["headers"].items()}, "Content-Type": media}
    asked = request(f"{url}?{query}" if query else url, body, *headers.items(), method=sent["method"])
    return make_key(asked, PROFILES).key


def operations(service: str) -> Iterator[tuple[str, "OperationModel"]]:
    """The protocol and model of each operation with such a token."""
    model = session().get_service_model(service)
    if model.resolved_protocol in PROTOCOLS:
        for name in model.operation_names:
            operation = model.operation_model(name)
            if operation.idempotent_members and (service, name) not in GIVEN_BY_THE_PROGRAM:
                yield model.resolved_protocol, operation


def test_no_operation_of_aws_has_another_key_for_another_token() -> None:
    found = [
        (service, operation.name, key_with(operation, protocol, "1b0d") == key_with(operation, protocol, "2e9f"))
        for service in session().get_available_services()
        for protocol, operation in operations(service)
    ]
    assert len(found) > 1000
    assert [(service, name) for service, name, is_equal in found if not is_equal] == []


@pytest.mark.parametrize("name", ["idempotency_key", "idempotencyKey"])
def test_an_idempotency_key_in_a_body_does_not_count(name: str) -> None:
    url = "https://connect.squareup.com/v2/payments"
    one, other, more = ({"amount": amount, name: value} for amount, value in ((5, "1b0d"), (5, "2e9f"), (6, "1b0d")))
    assert key(url, one) == key(url, other)
    assert key(url, one) != key(url, more)
