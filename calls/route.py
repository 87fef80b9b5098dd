"""Find the provider, dialect and operation of a request by its head, and by its body for JSON-RPC."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

from calls import telemetry as reports
from calls.codec.canonical import unicode
from calls.dialects import Claim, generic
from calls.dialects.protocols import a2a, jsonrpc, mcp
from calls.dialects.table import DIALECTS, GENERIC
from calls.model import Headers, Kind, Request

PROVIDERS: Final[dict[str, str]] = {
    "api.openai.com": "openai",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral_ai",
    "codestral.mistral.ai": "mistral_ai",
    "api.cohere.com": "cohere",
    "api.cohere.ai": "cohere",
    "api.deepseek.com": "deepseek",
    "api.perplexity.ai": "perplexity",
    "api.x.ai": "x_ai",
    "openrouter.ai": "openrouter",
    "api.together.xyz": "together",
    "api.together.ai": "together",
    "api.fireworks.ai": "fireworks",
    "api.cerebras.ai": "cerebras",
    "api.voyageai.com": "voyage",
    "api.writer.com": "writer",
    "api.replicate.com": "replicate",
    "router.huggingface.co": "huggingface",
    "ai-gateway.vercel.sh": "vercel",
    "ai-gateway.helicone.ai": "helicone",
    "api.portkey.ai": "portkey",
    "router.requesty.ai": "requesty",
    "api.ai21.com": "ai21",
    "api.aleph-alpha.com": "aleph_alpha",
    "api.arcee.ai": "arcee",
    "api.deepinfra.com": "deepinfra",
    "api.featherless.ai": "featherless",
    "api.githubcopilot.com": "github_copilot",
    "api.hunyuan.cloud.tencent.com": "tencent",
    "api.hyperbolic.xyz": "hyperbolic",
    "api.jina.ai": "jina",
    "api.lambdalabs.com": "lambda",
    "api.llama.com": "meta",
    "api.meta.ai": "meta",
    "api.minimax.io": "minimax",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.novita.ai": "novita",
    "api.sambanova.ai": "sambanova",
    "api.scaleway.ai": "scaleway",
    "api.stepfun.com": "stepfun",
    "api.venice.ai": "venice",
    "api.z.ai": "z_ai",
    "dashscope.aliyuncs.com": "alibaba",
    "dashscope-intl.aliyuncs.com": "alibaba",
    "dashscope-us.aliyuncs.com": "alibaba",
    "inference.api.nscale.com": "nscale",
    "inference.baseten.co": "baseten",
    "gigachat.devices.sberbank.ru": "gigachat",
    "integrate.api.nvidia.com": "nvidia",
    "llm.chutes.ai": "chutes",
    "models.github.ai": "github",
    "oai.endpoints.kepler.ai.cloud.ovh.net": "ovhcloud",
    "open.bigmodel.cn": "zhipu",
    "qianfan.baidubce.com": "baidu",
}
"""Hosts that are one service each, and OpenTelemetry's `gen_ai.provider.name` of it (a name of its kind where it has none)."""

_FAMILIES: Final = (
    (re.compile(r".+\.(openai|cognitiveservices)\.azure\.com"), "azure.ai.openai"),
    (re.compile(r".+\.(services\.ai|inference\.ai|models\.ai)\.azure\.com"), "azure.ai.inference"),
    (re.compile(r"(.+-)?aiplatform(\.\w+\.rep)?\.googleapis\.com"), "gcp.vertex_ai"),
    (re.compile(r"bedrock[\w-]*\..+\.amazonaws\.com(\.cn)?"), "aws.bedrock"),
    (re.compile(r".+\.ml\.cloud\.ibm\.com"), "ibm.watsonx.ai"),
    (re.compile(r".+\.api\.openai\.com"), "openai"),
    (re.compile(r".+\.endpoints\.huggingface\.cloud|(api-inference\.)?huggingface\.co"), "huggingface"),
    (re.compile(r"bedrock-mantle\..+\.api\.aws"), "aws.bedrock"),
    (re.compile(r"aws-external-anthropic\..+\.api\.aws|claude\.googleapis\.com"), "anthropic"),
    (re.compile(r"runtime(-fips)?\.sagemaker\..+\.amazonaws\.com(\.cn)?"), "aws.sagemaker"),
    (re.compile(r"cloudcode-pa\.googleapis\.com"), "gcp.gemini"),
    (re.compile(r"chatgpt\.com"), "openai"),
    (re.compile(r"api\.(individual|business|enterprise)\.githubcopilot\.com"), "github_copilot"),
    (re.compile(r"(.+\.)?fireworks\.ai"), "fireworks"),
    (re.compile(r".+databricks\.(net|com)"), "databricks"),
    (re.compile(r".+\.snowflakecomputing\.com"), "snowflake"),
    (re.compile(r"(ai\.)?api\.nvidia\.com"), "nvidia"),
    (re.compile(r".+\.api\.baseten\.co"), "baseten"),
    (re.compile(r"(.+\.)?api\.cloudflare\.com|gateway\.ai\.cloudflare\.com"), "cloudflare"),
    (re.compile(r"api\.(studio\.nebius\.(ai|com)|tokenfactory\.nebius\.com)"), "nebius"),
    (re.compile(r"ark(\.[\w-]+)?\.(volces|bytepluses)\.com"), "volcengine"),
    (re.compile(r"api\.minimaxi?\.(chat|com)"), "minimax"),
    (re.compile(r"inference\.generativeai\..+\.oci\.oraclecloud\.com"), "oci.generative_ai"),
    (re.compile(r"(queue\.)?fal\.run"), "fal"),
)

_ALONE: Final = frozenset(("azure.ai.inference", "azure.ai.openai", "baseten", "fal", "fireworks", "nebius", "openai"))
"""Those of them that serve models and nothing else; the others are clouds, warehouses and hubs too."""

_WAREHOUSES: Final = frozenset(("cloudflare", "databricks", "snowflake"))
"""Those that serve models beside what they are for: what no dialect knows of them is SQL, a queue, a domain."""

_BY_NAME: Final = re.compile(
    r"api\.(?:(?P<name>elevenlabs|reka|upstage|friendli|inceptionlabs|lambda|stability|siliconflow|deepgram|assemblyai"
    r"|mixedbread|lumalabs|runwayml)\.(?:io|ai|cn|com))"
)
"""Services that are called like their hosts."""

_RETRIEVAL: Final = re.compile(
    r".+\.(pinecone\.io|weaviate\.network|weaviate\.cloud|qdrant\.io|trychroma\.com)"
    r"|api\.(tavily\.com|exa\.ai|firecrawl\.dev|search\.brave\.com|linkup\.so|you\.com|parallel\.ai|ydc-index\.io)"
    r"|google\.serper\.dev|serpapi\.com|[rs]\.jina\.ai"
)
"""Vector stores and search services."""

_BESIDE_MODELS: Final = re.compile(r"bedrock-agent(core|-runtime)?\..+\.amazonaws\.com(\.cn)?")
"""Where a model's service runs tools, sessions and memories. What asks a model there is a dialect's."""

_TELEMETRY: Final = re.compile(
    r"api\.smith\.langchain\.com|(.+\.)?(datadoghq\.com|datad0g\.com|posthog\.com|langfuse\.com|sentry\.io|honeycomb\.io)"
    r"|telemetry\..+"
)
"""What an agent reports to; nobody's answer depends on it."""

_KEPT: Final = re.compile(
    r"/(files|uploads?|batches|batch|batchPredictionJobs|skills|models|cachedContents|fine[-_]tuning|datasets|embed-jobs"
    r"|agents|libraries|organizations|spaces|collections|fileSearchStores|corpora|environments|vaults|memory_stores"
    r"|deployments|user_profiles|tunnels|voices)(/[^/:]+)*/?$"
    r"|/v1/sessions(/[^/]+(/(archive|resources(/[^/]+)?))?)?$|:(batchGenerateContent|asyncBatchEmbedContent|importFile)$|/v1internal:\w+$|/check-api-key$"
)
"""What a model's service keeps for later: to send it there asks no model yet."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Which way a request goes."""

    provider: str
    """OpenTelemetry's `gen_ai.provider.name` where the host is a known service, else the host itself."""
    dialect: str
    operation: str
    kind: Kind
    method: str
    host: str
    upstream: str
    """Whom the key names: the service where the host stands for one, else the authority that was asked."""
    path: str
    place: str
    """The path as it counts in a key."""
    model: str | None = None
    """The model, where the path names it."""
    streams: bool | None = None
    """Whether the path asks for a stream; None where it does not tell."""
    polls: str | None = None
    """The id of the work that the request asks after, where it does no more than that."""


CONSULTED: Final = frozenset(
    (
        *(
            "accept",
            "ai-gateway-protocol-version",
            "ai-language-model-id",
            "ai-language-model-streaming",
            "ai-model-id",
        ),
        *("anthropic-version", "mcp-method", "mcp-protocol-version", "mcp-session-id", "openai-beta"),
        *("upgrade", "user-agent", "x-amz-date", "x-fern-sdk-name", "x-pinecone-api-version"),
    )
)
"""The headers that a dialect may look at to know its own: it sees no others."""

_MEMORABLE: Final = 1024


def route(method: str, host: str, path: str, headers: Headers = (), body: bytes = b"") -> Route:
    """The way of a request with this head. The host may carry a port; the body matters only to what is spoken in JSON-RPC."""
    method, host = method.upper(), host.lower()
    name, _, port = host.rpartition(":") if re.search(r":\d*$", host) else (host, "", "")
    claim = _spoken(method, headers, body) or _claim(method, name, path, headers)
    return Route(
        provider=_provider(name, claim.provider),
        dialect=claim.dialect,
        operation=claim.operation,
        kind=claim.kind or _kind(name, method, path),
        method=method,
        host=name,
        upstream=PROVIDERS.get(name) or (f"{name}:{port}" if port else name),
        path=path,
        place=claim.path or path,
        model=claim.model,
        streams=claim.streams,
        polls=claim.polls,
    )


def route_of(request: Request) -> Route:
    """The way of a request."""
    host, path, _ = target(request.url)
    return route(unicode(request.method), host, path, request.headers, request.body.data)


@lru_cache(maxsize=256)
def target(url: str) -> tuple[str, str, str]:
    """A URL's authority (without a default port), normal path and raw query. A URL that cannot be read is all path."""
    url = unicode(url)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return "", url, ""
    default = _DEFAULT_PORTS.get(parts.scheme)
    return host if port in (None, default) else f"{host}:{port}", normal_path(parts.path) or "/", parts.query


_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")


def normal_path(path: str) -> str:
    """A path in which every character that may stand for itself does (RFC 3986 6.2.2.2, and the other `pchar`s)."""
    return _ESCAPE.sub(_unescaped, path) if "%" in path else path


def _unescaped(match: re.Match[str]) -> str:
    if match[1] is None:
        return "%25"  # no escape: left alone it might become one with what is unescaped beside it
    character = chr(int(match[1], 16))
    plain = character.isascii() and (character.isalnum() or character in "-._~!$&'()*+,;=:@")
    return character if plain else match[0].upper()


def _spoken(method: str, headers: Headers, body: bytes) -> Claim | None:
    """The claim on a message of JSON-RPC, which may be sent to any path."""
    if method != "POST" or (called := jsonrpc.methods(body)) is None:
        return None
    return mcp.speaks(headers, called) or a2a.speaks(headers, called)


def _claim(method: str, host: str, path: str, headers: Headers) -> Claim:
    said = tuple((low, value) for low, value in ((name.lower(), value) for name, value in headers) if low in CONSULTED)
    if len(path) + sum(len(value) for _, value in said) > _MEMORABLE:
        return _claimed(method, host, path, said)
    return _remembered(method, host, path, said)


def _claimed(method: str, host: str, path: str, said: Headers) -> Claim:
    if (place := reports.place(method, host, path, said)) is not None:
        return Claim(dialect=generic.NAME, operation=reports.OPERATION, kind="other", path=place)
    claims = (dialect.claims(method, host, path, said) for dialect in DIALECTS)
    return next((claim for claim in claims if claim is not None), GENERIC)


# An agent asks the same few places again and again, and every dialect is asked about each.
_remembered = lru_cache(1024)(_claimed)


def _provider(host: str, claimed: str | None = None) -> str:
    return PROVIDERS.get(host) or _family(host) or claimed or host


def serves_only_models(host: str) -> bool:
    """Whether a host is a model's service and nothing else."""
    return host in PROVIDERS or _BY_NAME.fullmatch(host) is not None or _family(host) in _ALONE


@lru_cache(1024)
def _family(host: str) -> str | None:
    named = _BY_NAME.fullmatch(host)
    return named["name"] if named else next((name for shape, name in _FAMILIES if shape.fullmatch(host)), None)


def _kind(host: str, method: str, path: str) -> Kind:
    """What a request is that no dialect knows."""
    if _RETRIEVAL.fullmatch(host):
        return "retrieval"
    if _TELEMETRY.fullmatch(host):
        return "other"
    if _BESIDE_MODELS.fullmatch(host):
        return "tool" if method == "POST" else "other"
    if _family(host) in _WAREHOUSES:
        return "tool"
    if _provider(host) != host:
        return "model" if method == "POST" and not _KEPT.search(path) else "other"
    return "tool"
