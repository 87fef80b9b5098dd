"""Send the same requests again and again to any server that speaks OpenAI's API, and compare the answers."""

import asyncio
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx2

from proxy.errors import Failure
from proxy.inference.plans import Ask, Wave
from proxy.inference.tally import ProbeAnswer, Tally, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server and how it is spoken to."""

    url: str
    model: str | None = None
    key: str | None = None
    chat: bool = False
    """Ask `/chat/completions`, where `/completions` is not offered."""


async def probe(target: Target, plan: Iterable[Wave]) -> Tally:
    """Ask wave after wave, each at once. Raises Failure where the server cannot be asked at all."""
    headers = {"authorization": f"Bearer {target.key}"} if target.key else {}
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(
        base_url=_base(target.url), headers=headers, trust_env=False, timeout=None, limits=limits
    ) as client:
        asker = await _introduced(client, target)
        given: list[ProbeAnswer] = []
        failed: list[str] = []
        began = time.perf_counter()
        for wave in plan:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(asker.ask(ask, len(wave))) for ask in wave]
            for ask, task in zip(wave, tasks, strict=True):
                match task.result():
                    case str() as reason:
                        failed.append(reason)
                    case answer if ask.subject is not None:
                        given.append(answer)
        return tally(target.url, given, failed, time.perf_counter() - began)


def _base(url: str) -> str:
    """With and without the version people may mean the same."""
    return url.rstrip("/") if url.rstrip("/").endswith("/v1") else f"{url.rstrip('/')}/v1"


async def _introduced(client: httpx2.AsyncClient, target: Target) -> "_Asker":
    try:
        answer = await client.get("/models", timeout=30.0)
        models = answer.json()["data"] if answer.status_code == 200 else []
    except (httpx2.HTTPError, ValueError, KeyError) as error:
        raise Failure(f"{target.url} does not answer as an OpenAI-compatible server ({error!r}); is it up?") from error
    if not models and target.model is None:
        raise Failure(f"{target.url} lists no models (status {answer.status_code}); name one with --model")
    name = target.model or str(models[0]["id"])
    # Other servers may refuse a field that they do not know.
    salted = any(model.get("owned_by") == "vllm" for model in models)
    return _Asker(client=client, model=name, chat=target.chat, salted=salted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asker:
    client: httpx2.AsyncClient
    model: str
    chat: bool
    salted: bool

    async def ask(self, ask: Ask, load: int) -> ProbeAnswer | str:
        """The answer, or why there is none."""
        path = "/chat/completions" if self.chat else "/completions"
        try:
            answer = await self.client.post(path, json=self._body(ask))
        except httpx2.HTTPError as error:
            return repr(error)
        if answer.status_code != 200:
            return f"status {answer.status_code}: {answer.text[:200]}"
        try:
            choice = answer.json()["choices"][0]
            text, tokens, logprobs = _read_chat(choice) if self.chat else _read(choice)
        except (ValueError, LookupError, TypeError) as error:
            return f"an answer of another shape: {error!r}"
        return ProbeAnswer(
            subject=ask.subject or "",
            load=load,
            text=text,
            tokens=tokens,
            logprobs=logprobs,
            claim=answer.headers.get("x-batch-invariant"),
        )

    def _body(self, ask: Ask) -> dict[str, Any]:
        body = {"model": self.model, "max_tokens": ask.tokens, **ask.sampling}
        if self.salted:
            body["cache_salt"] = uuid4().hex
        if self.chat:
            messages = [{"role": "user", "content": ask.prompt}]
            return body | {"messages": messages, "logprobs": True, "top_logprobs": 5}
        return body | {"prompt": ask.prompt, "logprobs": 5}


type _Read = tuple[str, tuple[str, ...], tuple[float, ...]]


def _read(choice: dict[str, Any]) -> _Read:
    found = choice.get("logprobs") or {}
    return choice["text"], tuple(found.get("tokens") or ()), _numbers(found.get("token_logprobs") or ())


def _read_chat(choice: dict[str, Any]) -> _Read:
    found = (choice.get("logprobs") or {}).get("content") or ()
    tokens = tuple(entry["token"] for entry in found)
    return choice["message"].get("content") or "", tokens, _numbers([entry["logprob"] for entry in found])


def _numbers(values: Sequence[float | int | None]) -> tuple[float, ...]:
    with suppress(TypeError):
        return tuple(float(value) for value in values)  # type: ignore[arg-type] # a null among them: then none compare
    return ()
