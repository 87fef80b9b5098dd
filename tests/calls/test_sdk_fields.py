"""Every field that an official SDK can send is classified by the profile of its dialect: a new SDK tells of new fields here.

Only names count: what a field holds is made up.
"""

import re
from collections.abc import Iterator
from inspect import getsource
from typing import Any

import pytest

from tests.calls.sample_requests import explained_key

RUNTIME = "https://bedrock-runtime.us-east-1.amazonaws.com"
AGENTS = "https://bedrock-agent-runtime.us-east-1.amazonaws.com"

HEADERS = {"betas", "workspace_id", "user_profile_id", "api_version"}
"""Parameters that go into headers, or into the path."""


def anthropic() -> Iterator[tuple[str, set[str]]]:
    from anthropic.types.beta import message_count_tokens_params, message_create_params

    url = "https://api.anthropic.com/v1/messages"
    yield url, set(message_create_params.MessageCreateParamsBase.__annotations__)
    yield f"{url}/count_tokens", set(message_count_tokens_params.MessageCountTokensParams.__annotations__)


def interactions() -> Iterator[tuple[str, set[str]]]:
    from google.genai._interactions.types import interaction_create_params

    url = "https://generativelanguage.googleapis.com/v1beta/interactions"
    for kind in ("Model", "Agent"):
        yield url, set(getattr(interaction_create_params, f"BaseCreate{kind}InteractionParams").__annotations__)


def bedrock() -> Iterator[tuple[str, set[str]]]:
    """What the service models of botocore say."""
    import botocore.session

    session = botocore.session.get_session()
    for service, origin, names in (
        (
            "bedrock-runtime",
            RUNTIME,
            ("Converse", "ConverseStream", "ApplyGuardrail", "CountTokens", "StartAsyncInvoke"),
        ),
        ("bedrock-agent-runtime", AGENTS, ("InvokeAgent", "InvokeInlineAgent", "InvokeFlow", "Retrieve", "Rerank")),
        ("bedrock-agent-runtime", AGENTS, ("RetrieveAndGenerate", "RetrieveAndGenerateStream", "GenerateQuery")),
    ):
        model = session.get_service_model(service)
        for operation in map(model.operation_model, names):
            path = re.sub(
                r"\{(\w+)\+?\}",
                lambda part: "amazon.nova" if part[1] == "modelId" else "x",
                operation.http["requestUri"],
            )
            shapes = operation.input_shape.members.items()
            yield origin + path, {name for name, shape in shapes if "location" not in shape.serialization}


def cohere() -> Iterator[tuple[str, set[str]]]:
    from cohere.base_client import BaseCohere
    from cohere.v2.raw_client import RawV2Client

    for name in ("chat", "embed", "rerank"):
        yield f"https://api.cohere.com/v2/{name}", _sent_members(getsource(getattr(RawV2Client, name)))
    source = getsource(__import__("cohere.raw_base_client", fromlist=["RawBaseCohere"]))
    for name in ("chat", "generate", "embed", "rerank", "classify", "summarize", "tokenize", "detokenize"):
        assert hasattr(BaseCohere, name)
        body = source.partition(f"    def {name}(")[2].partition("\n    def ")[0]
        yield f"https://api.cohere.com/v1/{name}", _sent_members(body)


def _sent_members(source: str) -> set[str]:
    """The members of the JSON that a method of the SDK makes."""
    return set(re.findall(r'"(\w+)":', source.partition("json={")[2].partition("\n            }")[0]))


def ollamas() -> Iterator[tuple[str, set[str]]]:
    from ollama import _types as ollama

    for name, kind in (
        ("chat", ollama.ChatRequest),
        ("generate", ollama.GenerateRequest),
        ("embed", ollama.EmbedRequest),
    ):
        yield f"http://localhost:11434/api/{name}", set(kind.model_fields)


@pytest.mark.parametrize("sdk", [anthropic, interactions, bedrock, cohere, ollamas])
def test_no_field_of_an_sdk_is_unknown(sdk: Any) -> None:
    for url, fields in sdk():
        assert fields, url
        made = explained_key(url, dict.fromkeys(sorted(fields - HEADERS), "x"))
        assert (made.dialect != "generic", made.warnings) == (True, ()), url
