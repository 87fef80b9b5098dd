"""Services that copy OpenAI's API, by their hosts."""

from typing import Final

from calls.dialects.dialect import Service
from calls.dialects.parts.unclaimed_kinds import always_tool

COMPATIBLE_SERVICES: Final = (
    Service(provider="groq", hosts=("api.groq.com",)),
    Service(provider="mistral_ai", hosts=("api.mistral.ai", "codestral.mistral.ai")),
    Service(provider="deepseek", hosts=("api.deepseek.com",)),
    Service(provider="perplexity", hosts=("api.perplexity.ai",)),
    Service(provider="x_ai", hosts=("api.x.ai",)),
    Service(provider="openrouter", hosts=("openrouter.ai",)),
    Service(provider="together", hosts=("api.together.xyz", "api.together.ai")),
    Service(provider="fireworks", hosts=("api.fireworks.ai",), host_pattern=r"(.+\.)?fireworks\.ai"),
    Service(provider="cerebras", hosts=("api.cerebras.ai",)),
    Service(provider="writer", hosts=("api.writer.com",)),
    Service(provider="helicone", hosts=("ai-gateway.helicone.ai",)),
    Service(provider="portkey", hosts=("api.portkey.ai",)),
    Service(provider="requesty", hosts=("router.requesty.ai",)),
    Service(provider="ai21", hosts=("api.ai21.com",)),
    Service(provider="arcee", hosts=("api.arcee.ai",)),
    Service(provider="deepinfra", hosts=("api.deepinfra.com",)),
    Service(provider="featherless", hosts=("api.featherless.ai",)),
    Service(
        provider="github_copilot",
        hosts=("api.githubcopilot.com",),
        host_pattern=r"api\.(individual|business|enterprise)\.githubcopilot\.com",
        only_models=False,
    ),
    Service(provider="tencent", hosts=("api.hunyuan.cloud.tencent.com",)),
    Service(provider="hyperbolic", hosts=("api.hyperbolic.xyz",)),
    Service(provider="lambda", hosts=("api.lambdalabs.com",)),
    Service(provider="meta", hosts=("api.llama.com", "api.meta.ai")),
    Service(
        provider="minimax", hosts=("api.minimax.io",), host_pattern=r"api\.minimaxi?\.(chat|com)", only_models=False
    ),
    Service(provider="moonshot", hosts=("api.moonshot.ai", "api.moonshot.cn")),
    Service(provider="novita", hosts=("api.novita.ai",)),
    Service(provider="sambanova", hosts=("api.sambanova.ai",)),
    Service(provider="scaleway", hosts=("api.scaleway.ai",)),
    Service(provider="stepfun", hosts=("api.stepfun.com",)),
    Service(provider="venice", hosts=("api.venice.ai",)),
    Service(provider="z_ai", hosts=("api.z.ai",)),
    Service(provider="nscale", hosts=("inference.api.nscale.com",)),
    Service(provider="baseten", hosts=("inference.baseten.co",), host_pattern=r".+\.api\.baseten\.co"),
    Service(provider="gigachat", hosts=("gigachat.devices.sberbank.ru",)),
    Service(
        provider="nvidia",
        hosts=("integrate.api.nvidia.com",),
        host_pattern=r"(ai\.)?api\.nvidia\.com",
        only_models=False,
    ),
    Service(provider="chutes", hosts=("llm.chutes.ai",)),
    Service(provider="github", hosts=("models.github.ai",)),
    Service(provider="ovhcloud", hosts=("oai.endpoints.kepler.ai.cloud.ovh.net",)),
    Service(provider="zhipu", hosts=("open.bigmodel.cn",)),
    Service(provider="baidu", hosts=("qianfan.baidubce.com",)),
    Service(provider="nebius", host_pattern=r"api\.(studio\.nebius\.(ai|com)|tokenfactory\.nebius\.com)"),
    Service(provider="volcengine", host_pattern=r"ark(\.[\w-]+)?\.(volces|bytepluses)\.com", only_models=False),
    Service(
        provider="databricks",
        host_pattern=r".+databricks\.(net|com)",
        only_models=False,
        unclaimed_kind=always_tool,
    ),
    Service(
        provider="snowflake",
        host_pattern=r".+\.snowflakecomputing\.com",
        only_models=False,
        unclaimed_kind=always_tool,
    ),
    *(
        Service(provider=name, host_pattern=rf"api\.{name}\.(io|ai|cn|com)")
        for name in ("friendli", "inceptionlabs", "lambda", "reka", "siliconflow", "upstage")
    ),
)
"""Databricks and Snowflake are warehouses first: what no dialect claims there is SQL."""
