"""Prices of a team's own: negotiated ones, and those of models that the price tables do not have. docs/prices.md describes the file.

A process that calculates costs is given them once, when it starts (`store.pricing.prices.use_own_prices`).
"""

import datetime as dt
import hashlib
from collections.abc import Mapping
from decimal import Decimal
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    # Commands have this module for the configuration of a store server, and calculate no cost.
    from calls.model import Json, Usage

_MILLION: Final = Decimal(1_000_000)
_NANOSECONDS: Final = 1_000_000_000

MOST_PRICES: Final = 10_000

_AMOUNTS: Final = ("input", "output", "cached_input", "cache_write", "call")

_LARGEST: Final = 1_000_000
"""Dollars of a price at most."""

_APART: Final = (
    ("cache_read_input_tokens", "cache_creation_input_tokens"),
    ("cacheReadInputTokens", "cacheWriteInputTokens"),
)
"""Members of a usage that counts cached tokens apart from the input (Anthropic, Bedrock): those read, and those written."""


class BadPrices(ValueError):
    """The file of prices cannot be used."""


class OwnPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What calls of some models cost: US dollars for a million tokens and for a call, or a share of what they cost otherwise."""

    model: str
    """A name, or a pattern with `*`: of the model that answered, or of the one that was asked for."""
    provider: str | None = None
    host: str | None = None
    since: dt.date | None = None
    """The first day (UTC)."""
    until: dt.date | None = None
    """The day after the last."""
    input: Decimal | None = None
    output: Decimal | None = None
    cached_input: Decimal | None = None
    """Of tokens that were read from a cache; `input` if it is left out."""
    cache_write: Decimal | None = None
    """Of tokens that were written to a cache, where they are counted apart; `input` if it is left out."""
    call: Decimal | None = None
    discount: Decimal | None = None
    """The part that is deducted from the price that would hold otherwise: 0.15 for 15 %."""

    def __post_init__(self) -> None:
        if not self.model.strip():
            raise ValueError("`model` is empty: write a name, or `*` for all")
        amounts = {name: value for name in _AMOUNTS if (value := getattr(self, name)) is not None}
        for name, value in amounts.items():
            if not (value.is_finite() and 0 <= value <= _LARGEST):
                raise ValueError(f"`{name}` is {value}: give US dollars from 0 to {_LARGEST}")
        if self.discount is not None and not (self.discount.is_finite() and 0 < self.discount <= 1):
            raise ValueError(f"`discount` is {self.discount}: give a part of the price, such as 0.15 for 15 %")
        if self.discount is not None and amounts:
            raise ValueError("`discount` is of the list price: leave it out where a price is given")
        if (self.input is None) != (self.output is None):
            raise ValueError("`input` and `output` belong together: give both, 0 for what is free")
        if self.discount is None and self.input is None and self.call is None:
            raise ValueError("it has no price: give `input` and `output`, or `call`, or `discount`")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise ValueError("`since` is not before `until`")


class PricedCall(NamedTuple):
    """What of a call decides which price it has."""

    models: tuple[str, ...]
    provider: str
    host: str
    started_at: int
    """Nanoseconds since the Unix epoch."""


class OwnPrices(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of a file, in its order: the first that fits a call holds."""

    prices: tuple[OwnPrice, ...] = ()
    digest: str = ""
    """Of the file, which a stored cost names."""

    @property
    def version(self) -> str:
        """The source of a cost by these prices."""
        return f"own-prices/{self.digest}"

    def find(self, call: PricedCall) -> OwnPrice | None:
        """Return the price of a call; None if none fits."""
        if not self.prices:
            return None
        day = dt.datetime.fromtimestamp(call.started_at / _NANOSECONDS, dt.UTC).date()
        return next((one for one in self.prices if _fits(one, call, day)), None)


NO_PRICES: Final = OwnPrices()


class _PriceFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    price: Annotated[tuple[OwnPrice, ...], msgspec.Meta(min_length=1, max_length=MOST_PRICES)]


def parse_own_prices(text: str, *, is_json: bool = False) -> OwnPrices:
    """Parse a file of prices. Raises `BadPrices` that says what is wrong where."""
    # Most processes parse none.
    import tomllib

    try:
        content = (
            msgspec.json.Decoder(float_hook=Decimal).decode(text)
            if is_json
            else tomllib.loads(text, parse_float=Decimal)
        )
        file = msgspec.convert(content, _PriceFile)
    except (msgspec.DecodeError, tomllib.TOMLDecodeError) as error:
        raise BadPrices(str(error)) from error
    return OwnPrices(prices=file.price, digest=hashlib.sha256(text.encode()).hexdigest()[:12])


def price_usage(price: OwnPrice, usage: "Usage", reported: "Mapping[str, Json]") -> Decimal | None:
    """Return the dollars of a call by its tokens; None where the price is of tokens, and the answer does not count them.

    `reported` is the usage in the words of the answer.
    """
    fixed = price.call or Decimal(0)
    if price.input is None or price.output is None:
        return fixed
    if usage.input_tokens is None and usage.output_tokens is None:
        return None
    fresh, cached, written = _input_parts(usage, reported)
    cached_price = price.input if price.cached_input is None else price.cached_input
    write_price = price.input if price.cache_write is None else price.cache_write
    tokens = fresh * price.input + cached * cached_price + written * write_price
    return fixed + (tokens + (usage.output_tokens or 0) * price.output) / _MILLION


def _input_parts(usage: "Usage", reported: "Mapping[str, Json]") -> tuple[int, int, int]:
    """Return the input tokens that were neither read from a cache nor written to one, those read, and those written."""
    whole, cached = usage.input_tokens or 0, usage.cached_tokens or 0
    for read, write in _APART:
        if read in reported or write in reported:
            written = reported.get(write)
            return whole, cached, written if isinstance(written, int) and written > 0 else 0
    return max(0, whole - cached), cached, 0


def _fits(price: OwnPrice, call: PricedCall, day: dt.date) -> bool:
    return (
        (price.provider is None or price.provider == call.provider)
        and (price.host is None or fnmatchcase(call.host, price.host.lower()))
        and (price.since is None or price.since <= day)
        and (price.until is None or day < price.until)
        and any(fnmatchcase(model, price.model) for model in call.models)
    )
