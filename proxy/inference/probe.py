"""Send the same requests repeatedly to any server with OpenAI's API, and compare the answers."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2

from proxy.errors import Failure
from proxy.inference.plans import ProbeRequest, Wave
from proxy.inference.tally import ProbeAnswer, Tally, count_answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and how to send requests to it."""

    url: str
    model: str | None = None
    key: str | None = None
    chat: bool = False
    """Use `/chat/completions`, for servers without `/completions`."""


async def probe(target: Target, plan: Iterable[Wave]) -> Tally:
    """Send one wave after the other, and count the answers. Raises Failure if the server does not answer at all."""
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=_base_url(target.url), headers=headers, trust_env=False, timeout=None, limits=limits
    ) as client:
        probe_client = await _connect(client, target)
        answers: list[ProbeAnswer] = []
        failed: list[str] = []
        began = time.perf_counter()
        for wave in plan:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(probe_client.request_answer(ask, len(wave))) for ask in wave]
            for ask, task in zip(wave, tasks, strict=True):
                match task.result():
                    case str() as reason:
                        failed.append(reason)
                    case answer if ask.subject is not None:
                        answers.append(answer)
        return count_answers(target.url, answers, failed, time.perf_counter() - began)


def _base_url(url: str) -> str:
    """Add the version to a URL without one."""
    return url.rstrip("/") if url.rstrip("/").endswith("/v1") else f"{url.rstrip('/')}/v1"


async def _connect(client: httpx2.AsyncClient, target: Target) -> "_ProbeClient":
    try:
        answer = await client.get("/models", timeout=30.0)
        models = answer.json()["data"] if answer.status_code == 200 else []
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        raise Failure(f"{target.url} does not answer as an OpenAI-compatible server ({error!r}); is it up?") from error
    if not models and target.model is None:
        raise Failure(f"{target.url} lists no models (status {answer.status_code}); name one with --model")
    name = target.model or str(models[0]["id"])
    # Servers other than vLLM may refuse the unknown field cache_salt.
    uses_cache_salt = any(model.get("owned_by") == "vllm" for model in models)
    return _ProbeClient(client=client, model=name, chat=target.chat, uses_cache_salt=uses_cache_salt)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProbeClient:
    client: httpx2.AsyncClient
    model: str
    chat: bool
    uses_cache_salt: bool

    async def request_answer(self, request_answer: ProbeRequest, load: int) -> ProbeAnswer | str:
        """Send a request, and return its answer, or the reason why there is none."""
        path = "/chat/completions" if self.chat else "/completions"
        try:
            answer = await self.client.post(path, json=self._body(request_answer))
        except httpx2.HTTPError as error:
            return repr(error)
        if answer.status_code != 200:
            return f"status {answer.status_code}: {answer.text[:200]}"
        try:
            choice = answer.json()["choices"][0]
            text, tokens, logprobs = _parse_chat_completion(choice) if self.chat else _parse_completion(choice)
        except (ValueError, LookupError, TypeError) as error:
            return f"the answer is not a completion: {error!r}"
        return ProbeAnswer(
            subject=request_answer.subject or "",
            load=load,
            text=text,
            tokens=tokens,
            logprobs=logprobs,
            claim=answer.headers.get("x-batch-invariant"),
        )

    def _body(self, ask: ProbeRequest) -> dict[str, Any]:
        body = {"model": self.model, "max_tokens": ask.tokens, **ask.sampling}
        if self.uses_cache_salt:
            body["cache_salt"] = uuid4().hex
        if self.chat:
            messages = [{"role": "user", "content": ask.prompt}]
            return body | {"messages": messages, "logprobs": True, "top_logprobs": 5}
        return body | {"prompt": ask.prompt, "logprobs": 5}


type _Read = tuple[str, tuple[str, ...], tuple[float, ...]]


def _parse_completion(choice: dict[str, Any]) -> _Read:
    found = choice.get("logprobs") or {}
    return choice["text"], tuple(found.get("tokens") or ()), _float_tuple(found.get("token_logprobs") or ())


def _parse_chat_completion(choice: dict[str, Any]) -> _Read:
    found = (choice.get("logprobs") or {}).get("content") or ()
    tokens = tuple(entry["token"] for entry in found)
    return choice["message"].get("content") or "", tokens, _float_tuple([entry["logprob"] for entry in found])


def _float_tuple(values: Sequence[float | int | None]) -> tuple[float, ...]:
    with suppress(TypeError):
        return tuple(float(value) for value in values)  # type: ignore[arg-type] # a null among them: then none compare
    return ()
