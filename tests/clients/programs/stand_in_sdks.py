"""A suite whose answers are given by `playhead.answer`, read by official SDKs (`tests/clients/test_stand_ins.py` runs it)."""

import json
from functools import cache

import playhead
import pytest

pytestmark = pytest.mark.playhead(recording=False)

TEXT = "Three tickets – “open”."
CALLS = [
    {"name": "search_tickets", "arguments": {"query": "refund", "limit": 3}},
    {"name": "add_note", "arguments": {"ticket": "T-1", "text": "größer"}, "id": "call_note"},
]
NAMED = [(call["name"], call["arguments"]) for call in CALLS]
USER = [{"role": "user", "content": "any refunds?"}]

streamed = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


def give(said):
    """One answer with a text, or with two tool calls."""
    if said == "text":
        playhead.answer(text=TEXT, usage={"input_tokens": 11, "output_tokens": 7})
    else:
        playhead.answer(tool_calls=CALLS, usage={"input_tokens": 11, "output_tokens": 7})


def expect(said, text, calls):
    if said == "text":
        assert (text, calls) == (TEXT, [])
    else:
        assert (text or "", calls) == ("", NAMED)


both = pytest.mark.parametrize("said", ["text", "calls"])


@both
@streamed
def test_openai_chat(said, stream, playhead_run):
    import openai

    give(said)
    client = openai.OpenAI()
    if stream:
        with client.chat.completions.stream(
            model="gpt-5", messages=USER, stream_options={"include_usage": True}
        ) as events:
            kinds = {event.type for event in events}
            answer = events.get_final_completion()
        assert ("content.delta" in kinds) == (said == "text")
    else:
        answer = client.chat.completions.create(model="gpt-5", messages=USER)
    message = answer.choices[0].message
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]
    expect(said, message.content, calls)
    assert answer.model == "gpt-5"
    assert answer.choices[0].finish_reason == ("stop" if said == "text" else "tool_calls")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    if said == "calls":
        assert [call.id for call in message.tool_calls][1] == "call_note"
        assert playhead_run.calls.tools == [name for name, _ in NAMED]


@both
@streamed
def test_openai_responses(said, stream):
    import openai

    give(said)
    client = openai.OpenAI()
    if stream:
        with client.responses.stream(model="gpt-5", input="any refunds?") as events:
            kinds = [event.type for event in events]
            answer = events.get_final_response()
        assert ("response.output_text.delta" in kinds) == (said == "text")
    else:
        answer = client.responses.create(model="gpt-5", input="any refunds?", instructions="be brief")
        assert answer.instructions == "be brief"
    calls = [(item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"]
    expect(said, answer.output_text, calls)
    assert answer.status == "completed"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)


@streamed
def test_openai_completions(stream):
    import openai

    give("text")
    answer = openai.OpenAI().completions.create(model="gpt-3.5-turbo-instruct", prompt="any?", stream=stream)
    text = "".join(chunk.choices[0].text for chunk in answer) if stream else answer.choices[0].text
    assert text == TEXT


@both
@streamed
def test_anthropic(said, stream):
    import anthropic

    give(said)
    client = anthropic.Anthropic(api_key="none")
    asked = {"model": "claude-sonnet-5", "max_tokens": 99, "messages": USER}
    if stream:
        with client.messages.stream(**asked) as events:
            text = "".join(events.text_stream)
            answer = events.get_final_message()
        assert text == (TEXT if said == "text" else "")
    else:
        answer = client.messages.create(**asked)
    calls = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
    expect(said, "".join(block.text for block in answer.content if block.type == "text"), calls)
    assert answer.stop_reason == ("end_turn" if said == "text" else "tool_use")
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (11, 7)


@both
@streamed
@pytest.mark.parametrize("vertex", [False, True], ids=["gemini", "vertex"])
def test_google_genai(said, stream, vertex):
    from google import genai

    give(said)
    client = genai.Client(api_key="none", vertexai=vertex)
    asked = {"model": "gemini-3-pro", "contents": "any refunds?"}
    answers = (
        list(client.models.generate_content_stream(**asked)) if stream else [client.models.generate_content(**asked)]
    )
    parts = [part for answer in answers for part in answer.candidates[0].content.parts]
    calls = [(part.function_call.name, part.function_call.args) for part in parts if part.function_call]
    expect(said, "".join(part.text for part in parts if part.text), calls)
    usage = answers[-1].usage_metadata
    assert (usage.prompt_token_count, usage.candidates_token_count) == (11, 7)


@both
@streamed
def test_cohere_v2(said, stream):
    import cohere

    give(said)
    client = cohere.ClientV2(api_key="none")
    if not stream:
        answer = client.chat(model="command-a", messages=USER)
        text = "".join(part.text for part in answer.message.content or ())
        found = [(call.function.name, call.function.arguments) for call in answer.message.tool_calls or ()]
    else:
        text, found = "", []
        for event in client.chat_stream(model="command-a", messages=USER):
            match event.type:
                case "content-delta":
                    text += event.delta.message.content.text
                case "tool-call-start":
                    found.append([event.delta.message.tool_calls.function.name, ""])
                case "tool-call-delta":
                    found[-1][1] += event.delta.message.tool_calls.function.arguments
                case "message-end":
                    assert event.delta.usage.tokens.input_tokens == 11
    expect(said, text, [(name, json.loads(arguments)) for name, arguments in found])


@both
@streamed
def test_cohere_v1(said, stream):
    import cohere

    give(said)
    client = cohere.Client(api_key="none")
    asked = {"model": "command-r", "message": "any refunds?"}
    if stream:
        *_, last = client.chat_stream(**asked)
        answer = last.response
    else:
        answer = client.chat(**asked)
    expect(said, answer.text, [(call.name, call.parameters) for call in answer.tool_calls or ()])


@both
@streamed
def test_ollama(said, stream):
    import ollama

    give(said)
    client = ollama.Client(host="http://ollama.example")
    answer = client.chat(model="qwen3", messages=USER, stream=stream)
    parts = list(answer) if stream else [answer]
    calls = [(call.function.name, call.function.arguments) for part in parts for call in part.message.tool_calls or ()]
    expect(said, "".join(part.message.content or "" for part in parts), calls)
    assert parts[-1].done
    assert parts[-1].eval_count == 7


def test_ollama_generates():
    import ollama

    give("text")
    assert ollama.Client(host="http://ollama.example").generate(model="qwen3", prompt="any?").response == TEXT


@cache
def aws_session():
    """It has read the services' descriptions, which takes a fifth of a second."""
    import botocore.session

    return botocore.session.get_session()


def aws(service, **options):
    return aws_session().create_client(service, region_name="us-east-1", **options)


def bedrock():
    return aws("bedrock-runtime")


@both
@streamed
def test_bedrock_converse(said, stream):
    give(said)
    asked = {"modelId": "amazon.nova-pro-v1:0", "messages": [{"role": "user", "content": [{"text": "any?"}]}]}
    if not stream:
        answer = bedrock().converse(**asked)
        content = answer["output"]["message"]["content"]
        text = "".join(block.get("text", "") for block in content)
        calls = [(block["toolUse"]["name"], block["toolUse"]["input"]) for block in content if "toolUse" in block]
    else:
        text, found, stop = "", [], None
        for event in bedrock().converse_stream(**asked)["stream"]:
            match event:
                case {"contentBlockStart": {"start": {"toolUse": use}}}:
                    found.append([use["name"], ""])
                case {"contentBlockDelta": {"delta": {"text": piece}}}:
                    text += piece
                case {"contentBlockDelta": {"delta": {"toolUse": {"input": piece}}}}:
                    found[-1][1] += piece
                case {"messageStop": {"stopReason": stop}}:
                    pass
        assert stop == ("end_turn" if said == "text" else "tool_use")
        calls = [(name, json.loads(arguments)) for name, arguments in found]
    expect(said, text, calls)


@both
@streamed
def test_bedrock_invoke_of_anthropic_s_models(said, stream):
    give(said)
    asked = {"modelId": "anthropic.claude-sonnet-5-v1:0", "body": json.dumps({"messages": USER, "max_tokens": 9})}
    if not stream:
        content = json.loads(bedrock().invoke_model(**asked)["body"].read())["content"]
        text = "".join(block.get("text", "") for block in content)
        calls = [(block["name"], block["input"]) for block in content if block["type"] == "tool_use"]
    else:
        text, found = "", []
        for event in bedrock().invoke_model_with_response_stream(**asked)["body"]:
            match json.loads(event["chunk"]["bytes"]):
                case {"content_block": {"type": "tool_use", "name": name}}:
                    found.append([name, ""])
                case {"delta": {"text": piece}}:
                    text += piece
                case {"delta": {"partial_json": piece}}:
                    found[-1][1] += piece
        calls = [(name, json.loads(arguments)) for name, arguments in found]
    expect(said, text, calls)


VECTORS = [[0.5, 0.25], [1.0, 0.0]]
RANKS = [{"index": 1, "score": 0.75}, {"index": 0, "score": 0.5}]


def test_vectors():
    import cohere
    import ollama
    import openai
    from google import genai

    texts = ["a", "b"]
    for _ in range(6):
        playhead.answer(results=VECTORS)
    answer = openai.OpenAI().embeddings.create(model="text-embedding-3-small", input=texts)
    assert [one.embedding for one in answer.data] == VECTORS
    by_type = cohere.ClientV2(api_key="none").embed(
        model="embed-v4.0", texts=texts, input_type="classification", embedding_types=["float"]
    )
    assert by_type.embeddings.float_ == VECTORS
    older = cohere.Client(api_key="none").embed(model="embed-v3.0", texts=texts, input_type="classification")
    assert older.embeddings == VECTORS
    google = genai.Client(api_key="none")
    embedded = google.models.embed_content(model="gemini-embedding-001", contents=texts)
    assert [one.values for one in embedded.embeddings] == VECTORS
    assert ollama.Client(host="http://ollama.example").embed(model="nomic", input=texts).embeddings == VECTORS
    titan = bedrock().invoke_model(modelId="amazon.titan-embed-text-v2:0", body=json.dumps({"inputText": "a"}))
    assert json.loads(titan["body"].read())["embedding"] == VECTORS[0]


def test_ranks():
    import cohere

    for _ in range(2):
        playhead.answer(results=RANKS)
    for client in (cohere.ClientV2(api_key="none"), cohere.Client(api_key="none")):
        answer = client.rerank(model="rerank-v3.5", query="q", documents=["a", "b"])
        assert [(one.index, one.relevance_score) for one in answer.results] == [(1, 0.75), (0, 0.5)]


def test_other_answers_of_openai():
    import openai

    client = openai.OpenAI()
    playhead.answer(results=[["violence"], []])
    playhead.answer(results=["aGk=", "https://images.example.com/1.png"])
    for text in ("Hello.", "Hello again.", "Hi."):
        playhead.answer(text=text)
    moderated = client.moderations.create(model="omni-moderation-latest", input=["a", "b"]).results
    assert [(one.flagged, one.categories.violence, one.categories.hate) for one in moderated] == [
        (True, True, False),
        (False, False, False),
    ]
    pictures = client.images.generate(model="gpt-image-2", prompt="a cat").data
    assert [(one.b64_json, one.url) for one in pictures] == [("aGk=", None), (None, "https://images.example.com/1.png")]
    spoken = {"model": "gpt-4o-transcribe", "file": ("a.wav", b"RIFF")}
    assert client.audio.transcriptions.create(**spoken).text == "Hello."
    assert client.audio.transcriptions.create(**spoken, response_format="text") == "Hello again."
    kinds = [event.type for event in client.audio.transcriptions.create(**spoken, stream=True)]
    assert kinds == ["transcript.text.delta", "transcript.text.done"]


@both
@streamed
def test_openai_s_assistants(said, stream):
    import openai

    give(said)
    runs = openai.OpenAI().beta.threads.runs
    asked = {"thread_id": "thread_1", "assistant_id": "asst_1"}
    text = ""
    if stream:
        with runs.stream(**asked) as events:
            text = "".join(events.text_deltas)
            run = events.current_run
    else:
        run = runs.create(**asked)
    assert run.thread_id == "thread_1"
    assert run.status == ("completed" if said == "text" else "requires_action")
    required = run.required_action.submit_tool_outputs.tool_calls if run.required_action else ()
    calls = [(call.function.name, json.loads(call.function.arguments)) for call in required]
    if said == "text" and not stream:  # the client fetches the text when the run has ended
        give("text")
        page = openai.OpenAI().beta.threads.messages.list("thread_1")
        text = page.data[0].content[0].text.value
    expect(said, text, calls)


def test_openai_s_agents():
    import openai

    give("text")
    sessions = openai.OpenAI().beta.agents.sessions
    with sessions.create(environment={"type": "openai_hosted"}, input="any?", stream=True) as events:
        kinds = [event.type for event in events]
    assert kinds[0] == "agent.session.created"
    assert kinds[-1] == "agent.session.idle"


@both
def test_anthropic_s_sessions(said):
    import anthropic

    give(said)
    with anthropic.Anthropic(api_key="none").beta.sessions.events.stream("sesn_1") as stream:
        events = list(stream)
    text = "".join(part.text for event in events if event.type == "agent.message" for part in event.content)
    expect(said, text, [(event.name, event.input) for event in events if event.type == "agent.custom_tool_use"])
    assert events[-1].type == "session.status_idle"


@both
@streamed
def test_google_s_interactions(said, stream):
    from google import genai

    give(said)
    client = genai.Client(api_key="none")
    answer = client.interactions.create(model="gemini-3-pro", input="any?", stream=stream)
    if not stream:
        steps = [step.model_dump(exclude_none=True) for step in answer.steps]
        texts = [part["text"] for step in steps if step["type"] == "model_output" for part in step["content"]]
        calls = [(step["name"], step["arguments"]) for step in steps if step["type"] == "function_call"]
        assert answer.status == ("completed" if said == "text" else "requires_action")
    else:
        events = list(answer)
        deltas = [event.delta for event in events if event.event_type == "step.delta"]
        starts = [event.step for event in events if event.event_type == "step.start"]
        texts = [delta.text for delta in deltas if delta.type == "text"]
        arguments = [json.loads(delta.arguments) for delta in deltas if delta.type == "arguments_delta"]
        calls = list(zip([step.name for step in starts if step.type == "function_call"], arguments, strict=True))
        assert events[-1].event_type == "interaction.completed"
    expect(said, "".join(texts), calls)


@both
def test_bedrock_s_agents(said):
    give(said)
    asked = {"agentId": "AGENT12345", "agentAliasId": "ALIAS12345", "sessionId": "s-1", "inputText": "any?"}
    text, calls = "", []
    for event in aws("bedrock-agent-runtime").invoke_agent(**asked)["completion"]:
        match event:
            case {"chunk": {"bytes": piece}}:
                text += piece.decode()
            case {"returnControl": {"invocationInputs": inputs}}:
                functions = [one["functionInvocationInput"] for one in inputs]
                calls += [
                    (one["function"], {each["name"]: each["value"] for each in one["parameters"]}) for one in functions
                ]
    if said == "text":
        assert (text, calls) == (TEXT, [])
    else:  # their parameters are texts
        named = [(name, {key: str(value) for key, value in arguments.items()}) for name, arguments in NAMED]
        assert (text, calls) == ("", named)


def test_bedrock_s_other_operations():
    client = aws("bedrock-agent-runtime")
    give("text")
    assert client.retrieve_and_generate(input={"text": "any?"})["output"]["text"] == TEXT
    give("text")
    stream = client.retrieve_and_generate_stream(input={"text": "any?"})["stream"]
    assert "".join(event["output"]["text"] for event in stream if "output" in event) == TEXT
    playhead.answer(results=[["VIOLENCE"]])
    playhead.answer(results=[[]])
    asked = {
        "guardrailIdentifier": "g1",
        "guardrailVersion": "1",
        "source": "INPUT",
        "content": [{"text": {"text": "x"}}],
    }
    for action in ("GUARDRAIL_INTERVENED", "NONE"):
        assert bedrock().apply_guardrail(**asked)["action"] == action


@streamed
@pytest.mark.parametrize(
    ("model", "body", "read"),
    [
        ("amazon.titan-text-lite-v1", {"inputText": "x"}, lambda one: (one.get("results") or [one])[0]["outputText"]),
        ("meta.llama3-8b-instruct-v1:0", {"prompt": "x"}, lambda one: one["generation"]),
        ("mistral.mixtral-8x7b-instruct-v0:1", {"prompt": "x"}, lambda one: one["outputs"][0]["text"]),
    ],
)
def test_bedrock_invoke_of_text_models(model, body, read, stream):
    give("text")
    asked = {"modelId": model, "body": json.dumps(body)}
    if stream:
        events = bedrock().invoke_model_with_response_stream(**asked)["body"]
        assert "".join(read(json.loads(event["chunk"]["bytes"])) for event in events) == TEXT
    else:
        assert read(json.loads(bedrock().invoke_model(**asked)["body"].read())) == TEXT


@streamed
def test_sagemaker(stream):
    give("text")
    asked = {"EndpointName": "llama", "Body": json.dumps({"inputs": "any?"}), "ContentType": "application/json"}
    client = aws("sagemaker-runtime")
    if stream:
        parts = client.invoke_endpoint_with_response_stream(**asked)["Body"]
        data = b"".join(part["PayloadPart"]["Bytes"] for part in parts)
        assert json.loads(data.removeprefix(b"data: "))["generated_text"] == TEXT
    else:
        [answer] = [json.loads(client.invoke_endpoint(**asked)["Body"].read())]
        assert answer["generated_text"] == TEXT


@streamed
def test_hugging_face_s_text_generation(stream):
    from huggingface_hub import InferenceClient

    playhead.answer(body={}, host="huggingface.co", times=None)  # this SDK asks its hub for the names of agents
    give("text")
    client = InferenceClient(model="https://tgi.endpoints.huggingface.cloud", token="none")
    answer = client.text_generation("any?", stream=stream)
    assert ("".join(answer) if stream else answer) == TEXT


def test_mcp():
    import asyncio

    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    server = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "s", "version": "1"},
    }
    playhead.answer(method="get", status=405, body="", times=None, path="/mcp")
    playhead.answer(results=[server], prompt="initialize")
    playhead.answer(body="", status=202, prompt="notifications/initialized")
    schema = {"type": "object", "properties": {}}
    playhead.answer(results=[{"tools": [{"name": "count", "inputSchema": schema}]}], prompt="tools/list", times=None)
    playhead.answer(text="three")
    playhead.answer(results=[{"total": 3}])

    async def ask():
        async with (
            streamablehttp_client("https://tools.example.com/mcp") as (read, write, _),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            listed = await session.list_tools()
            said = await session.call_tool("count", {})
            structured = await session.call_tool("count", {})
            return listed, said, structured

    listed, said, structured = asyncio.run(ask())
    assert [tool.name for tool in listed.tools] == ["count"]
    assert said.content[0].text == "three"
    assert structured.structuredContent == {"total": 3}


def openai_error(status):
    import openai

    kinds = {400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError}
    kinds |= {404: openai.NotFoundError, 429: openai.RateLimitError, 500: openai.InternalServerError}
    with pytest.raises(kinds[status]) as raised:
        openai.OpenAI(max_retries=0).chat.completions.create(model="gpt-5", messages=USER)
    return raised.value.message


def anthropic_error(status):
    import anthropic

    kinds = {400: anthropic.BadRequestError, 401: anthropic.AuthenticationError, 403: anthropic.PermissionDeniedError}
    kinds |= {404: anthropic.NotFoundError, 429: anthropic.RateLimitError, 500: anthropic.InternalServerError}
    with pytest.raises(kinds[status]) as raised:
        anthropic.Anthropic(api_key="none", max_retries=0).messages.create(
            model="claude-sonnet-5", max_tokens=9, messages=USER
        )
    types = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error"}
    types |= {404: "not_found_error", 429: "rate_limit_error", 500: "api_error"}
    assert raised.value.body["error"]["type"] == types[status]
    return raised.value.message


def google_error(status):
    from google import genai
    from google.genai import errors

    client = genai.Client(api_key="none")
    with pytest.raises(errors.ServerError if status >= 500 else errors.ClientError) as raised:
        client.models.generate_content(model="gemini-3-pro", contents="any?")
    words = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
    words |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}
    assert raised.value.status == words[status]
    return raised.value.message


def cohere_error(status):
    import cohere
    from cohere import errors

    kinds = {400: errors.BadRequestError, 401: errors.UnauthorizedError, 403: errors.ForbiddenError}
    kinds |= {404: errors.NotFoundError, 429: errors.TooManyRequestsError, 500: errors.InternalServerError}
    with pytest.raises(kinds[status]) as raised:
        cohere.ClientV2(api_key="none").chat(model="command-a", messages=USER, request_options={"max_retries": 0})
    return str(raised.value.body)


def ollama_error(status):
    import ollama

    with pytest.raises(ollama.ResponseError) as raised:
        ollama.Client(host="http://ollama.example").chat(model="qwen3", messages=USER)
    assert raised.value.status_code == status
    return raised.value.error


def bedrock_error(status):
    from botocore.config import Config

    client = aws("bedrock-runtime", config=Config(retries={"total_max_attempts": 1}))
    kinds = {400: "ValidationException", 403: "AccessDeniedException", 404: "ResourceNotFoundException"}
    kinds |= {429: "ThrottlingException", 500: "InternalServerException", 401: "AccessDeniedException"}
    with pytest.raises(getattr(client.exceptions, kinds[status])) as raised:
        client.converse(modelId="amazon.nova-pro-v1:0", messages=[{"role": "user", "content": [{"text": "any?"}]}])
    return str(raised.value)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 429, 500])
@pytest.mark.parametrize(
    "fails", [openai_error, anthropic_error, google_error, cohere_error, ollama_error, bedrock_error]
)
def test_errors_of_the_sdks_own_types(fails, status):
    playhead.answer(error=status, message="Not today.")
    assert "Not today." in fails(status)


def test_a_retry_gets_the_next_answer():
    import openai

    playhead.answer(error=429)
    playhead.answer(text="Done.")
    answer = openai.OpenAI(max_retries=1).chat.completions.create(model="gpt-5", messages=USER)
    assert answer.choices[0].message.content == "Done."
