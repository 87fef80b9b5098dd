"""What a call cost: its usage at the prices of its day, by the tables of genai-prices.

The tables are never fetched anew while we run: a figure that is kept names the version that made it. What cannot be known
(a model or a service without a price, an answer that does not tell its usage) has no figure. Prices are list prices: no discount or
contract is known here.
"""

import datetime as dt
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from calls.codec.json import dumps
from calls.codec.lenient_json import members, some
from calls.model import Call, Exchange, Json, Usage, header

if TYPE_CHECKING:
    from genai_prices.data_snapshot import DataSnapshot
    from genai_prices.types import Provider
    from genai_prices.types import Usage as Counted

LARGEST: Final = Decimal(10) ** 9
"""Dollars. A call that would cost more has a usage that is none."""

FREE: Final = frozenset(("count_tokens", "moderation"))
"""Operations that ask a model and cost nothing."""

RECORDED: Final = "record"
"""In place of a version, where the answer came from a recording: it was paid for once."""

TOLD: Final = "provider"
"""In place of a version, where the provider told the cost itself (OpenRouter, in `usage.cost`)."""

_PROVIDERS: Final = {
    "azure.ai.openai": "azure",
    "azure.ai.inference": "azure",
    "gcp.gemini": "google",
    "gcp.vertex_ai": "google",
    "aws.bedrock": "aws",
    "mistral_ai": "mistral",
    "x_ai": "x-ai",
    "voyage": "voyageai",
    **{name: name for name in ("openai", "anthropic", "groq", "cohere", "deepseek", "perplexity", "openrouter")},
    **{name: name for name in ("together", "fireworks", "cerebras")},
}
"""Our names of services, and those of the tables. Others are found by their address."""

_FLAVORS: Final = {
    "openai_chat": ("chat",),
    "openai_completions": ("chat",),
    "openai_assistants": ("chat",),
    "openai_responses": ("responses",),
    "openai_embeddings": ("embeddings",),
    "openai_rest": ("images",),
    "anthropic": ("anthropic",),
    "bedrock_invoke": ("anthropic",),
}
"""How a dialect's usage is written, in the words of the tables; else in the service's own way (`default`)."""

_COUNTED: Final = ("usage", "usageMetadata", "meta")
"""Where answers tell their usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a call cost, and who says so."""

    usd: Decimal
    prices: str
    """`genai-prices/0.2.3`: the tables' version; or `provider`, or `record`."""


def cost(exchange: Exchange, call: Call) -> Cost | None:
    """What the call cost; None where nobody can know."""
    if call.kind != "model" or call.pending is not None:
        return None
    if is_recorded(exchange):
        return Cost(usd=Decimal(0), prices=RECORDED)
    if call.operation in FREE:
        return Cost(usd=Decimal(0), prices=version())
    answer = members(call.answer)
    if (told := _told(call, answer)) is not None:
        return Cost(usd=told, prices=TOLD)
    models = [name for name in (call.model_returned, call.model_requested) if name]
    told_usage = {name: answer[name] for name in _COUNTED if name in answer}
    service = _PROVIDERS.get(call.provider) or _address(exchange.request.url)
    if not models or (not told_usage and call.usage == Usage()):
        return None
    # Prices may change with the hour of the day; to the minute is fine enough, and equal calls need no second look.
    minute = exchange.started_at // 60_000_000_000
    flavors = (*_FLAVORS.get(call.dialect, ()), "default")
    context = (some(answer.get("service_tier")) or "", some(members(answer.get("usage")).get("speed")) or "")
    usd = _priced(service, flavors, tuple(models), dumps(told_usage), call.usage, context, minute)
    return None if usd is None else Cost(usd=usd, prices=version())


def is_recorded(exchange: Exchange) -> bool:
    """Whether the answer came from a recording, as in the prefix of a fork: then it bears our own mark."""
    mark = header(exchange.response.headers, "playhead") if exchange.response else None
    return mark is not None and mark.partition(";")[0] in ("replayed", "edited")


@cache
def version() -> str:
    """Which tables these are."""
    return f"genai-prices/{importlib.metadata.version('genai-prices')}"


def _told(call: Call, answer: Mapping[str, Json]) -> Decimal | None:
    """What OpenRouter or Vercel's gateway says that it cost; who brings a key of his own pays the provider behind it besides."""
    if call.dialect == "ai_gateway":
        return _told_by_gateway(members(members(answer.get("providerMetadata")).get("gateway")))
    usage = members(answer.get("usage"))
    if call.provider != "openrouter" or (told := _number(usage.get("cost"))) is None:
        return None
    behind = members(usage.get("cost_details")).get("upstream_inference_cost")
    return _sane(told + (_number(behind) or 0)) if usage.get("is_byok") is True else _sane(told)


def _told_by_gateway(said: Mapping[str, Json]) -> Decimal | None:
    try:
        return _sane(Decimal(some(said.get("cost")) or ""))
    except InvalidOperation:
        return None


def _number(value: Json) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    return Decimal(str(value))


def _address(url: str) -> str:
    """The part of a URL by which the tables know a service: the origin, and for routers the first folder."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}/{parts.path.lstrip('/').partition('/')[0]}"


@lru_cache(maxsize=4096)
def _priced(
    service: str,
    flavors: tuple[str, ...],
    models: tuple[str, ...],
    told: bytes,
    usage: Usage,
    context: tuple[str, str],
    minute: int,
) -> Decimal | None:
    provider = _provider(service)
    counted = _counted(provider, flavors, told, usage) if provider else None
    if provider is None or counted is None:
        return None
    at = dt.datetime.fromtimestamp(minute * 60, dt.UTC)
    said = {name: value for name, value in zip(("service_tier", "speed"), context, strict=True) if value}
    prices = (_quietly(_tables().calc, counted, model, provider.id, None, at, said) for model in models)
    total = next((price.total_price for price in prices if price is not None), None)
    return None if total is None else _sane(total)


def _provider(service: str) -> "Provider | None":
    """A service by its name or its address."""
    named, address = (None, service) if "://" in service else (service, None)
    return _quietly(_tables().find_provider, None, named, address)


def _counted(provider: "Provider", flavors: tuple[str, ...], told: bytes, usage: Usage) -> "Counted | None":
    """The usage as the tables count it: from the answer's own words, else from ours where they mean the same."""
    from genai_prices.types import Usage as Counted

    known = {extractor.api_flavor for extractor in provider.extractors or ()}
    answer = _quietly(msgspec.json.decode, told)
    for flavor in filter(known.__contains__, flavors):
        if (found := _quietly(provider.extract_usage, answer, api_flavor=flavor)) is not None:
            return found[1]
    if usage == Usage() or (usage.cached_tokens and flavors[0] == "anthropic"):
        return None  # Anthropic counts what was cached beside the input, the others within it
    counts = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return _quietly(Counted, **counts, cache_read_tokens=usage.cached_tokens)


def _quietly[**P, T](look: Callable[P, T], *what: P.args, **more: P.kwargs) -> T | None:
    """What a look at the tables finds; None where they know of nothing, or cannot read what an answer tells."""
    try:
        return look(*what, **more)
    except (LookupError, ValueError, ArithmeticError, TypeError, AttributeError):
        return None  # the last two where a usage has numbers for names: the library looks at it as at its own


def _sane(usd: Decimal) -> Decimal | None:
    return usd if usd.is_finite() and 0 <= usd <= LARGEST else None


@cache
def _tables() -> "DataSnapshot":
    # Not imported before something is to be priced: it takes a third of a second, and a store server starts in one.
    from genai_prices.data import providers
    from genai_prices.data_snapshot import DataSnapshot

    return DataSnapshot(providers=providers, from_auto_update=False)
