"""The setting `[[canary]]`: which calls are asked again, how often, and what that may cost."""

import math
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from proxy.retention_settings import check_duration
from proxy.setting_values import (
    InvalidValue,
    Reader,
    list_of,
    members_of,
    optional,
    read_text,
    setting,
    whole_number,
    with_checks,
)


def _number(least: float, most: float) -> Reader[float]:
    def read(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidValue(f"{value!r} is not a number from {least:g} to {most:g}")
        if not math.isfinite(value):
            raise InvalidValue(f"{value!r} is not a finite number")
        return float(value)

    return read


def _check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", name):
        raise ValueError(f"{name[:80]!r} is not a name of a canary: use 1 to 63 of A-Z a-z 0-9 . _ -")
    return name


def _check_variable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(
            "key_env is the name of an environment variable, such as OPENAI_API_KEY, and never the key itself"
        )
    return name


def read_model_url(value: object) -> "ModelAddress":
    """Read URL/MODEL, or a table. Raises InvalidValue."""
    if not isinstance(value, str):
        return members_of(ModelAddress)(value)
    base, slash, model = value.partition("/v1/")
    if slash:
        url = f"{base}/v1"
    else:
        url, _, model = value.rpartition("/")
    if not model or "//" not in url or url.endswith("/"):
        raise InvalidValue(
            f"{value[:200]!r} is not URL/MODEL: write the base URL of an OpenAI-compatible API and the model, such as"
            " https://api.openai.com/v1/text-embedding-3-small"
        )
    return ModelAddress(url=_read_url(url), model=model)


def _check_url(url: str) -> str:
    if not _is_requestable(url):
        raise ValueError(
            f"{url[:200]!r} is not a URL of an API or a webhook: write one such as https://api.openai.com/v1, without a password"
        )
    return url


def _is_requestable(url: str) -> bool:
    try:
        parts = urlsplit(url)
        has_port = parts.port != 0
    except ValueError:  # brackets without an address, or a port that is no number or too large
        return False
    # Of other characters, `urlsplit` removes some, and clients raise an error.
    is_web = parts.scheme in ("http", "https") and url.isprintable()
    return is_web and has_port and bool(parts.hostname) and parts.username is None


_read_duration: Final[Reader[str]] = with_checks(read_text, check_duration)
_read_webhook: Final[Reader[str]] = with_checks(read_text, _check_url)


_read_variable: Final[Reader[str]] = with_checks(read_text, _check_variable)
_read_url: Final[Reader[str]] = with_checks(read_text, _check_url)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAddress:
    """A model behind an OpenAI-compatible API that is asked how far an answer is from the reference answers."""

    url: str = setting(_read_url)
    """The base URL, such as https://api.openai.com/v1."""

    model: str = setting(read_text)
    key_env: str | None = setting(optional(_read_variable), None)
    """The environment variable with its key; None: that of the canary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CanarySettings:
    """One canary."""

    name: str = setting(with_checks(read_text, _check_name))
    calls: tuple[str, ...] = setting(list_of(read_text), ())
    """Recordings, each a run or a file, with `#STEP` for one of its calls; without, all of its calls of models."""

    key_env: str = setting(with_checks(read_text, _check_variable), "OPENAI_API_KEY")
    every: str | None = setting(optional(_read_duration), None)
    """How often `up` asks; None: only `playhead canary` does."""

    times: int = setting(whole_number(1, 10_000), 20)
    """Calls of a shot."""

    budget_usd: float = setting(_number(0.0, 1e6), 1.0)
    """What a shot may cost."""

    references: int = setting(whole_number(1, 20), 3)
    baseline: int = setting(whole_number(10, 100_000), 200)
    effect: float = setting(_number(0.01, 0.9), 0.1)
    false_alarm: float = setting(_number(1e-6, 0.5), 0.05)
    embeddings: ModelAddress | None = setting(optional(read_model_url), None)
    """Whose embeddings give the distance of answers from the reference answers."""

    judge: ModelAddress | None = setting(optional(read_model_url), None)
    """Who judges whether answers mean the same as the reference answers."""

    webhook: str | None = setting(optional(_read_webhook), None)
