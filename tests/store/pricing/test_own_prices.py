"""Prices of the user's own come first, and a file with a mistake is refused by its words."""

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, Final

import msgspec
import pytest
from msgspec.structs import replace

from calls.derive import derive_call
from store.large.jobs import HelperConfig
from store.pricing.own_prices import NO_PRICES, BadPrices, OwnPrices, parse_own_prices
from store.pricing.prices import Cost, call_cost, use_own_prices
from store.server_config import StoreServerConfig
from tests.store.running_store import PROFILES
from tests.store.samples import NOON, exchange

OPENAI: Final = "https://api.openai.com/v1/chat/completions"
ANTHROPIC: Final = "https://api.anthropic.com/v1/messages"
OWN: Final = "https://llm.internal/v1/chat/completions"

DAY: Final = dt.datetime.fromtimestamp(NOON / 1e9, dt.UTC).date()


@pytest.fixture(autouse=True)
def without_own_prices() -> Iterator[None]:
    yield
    use_own_prices(NO_PRICES)


def cost(prices: str, url: str = OPENAI, model: str = "gpt-4o-mini", status: int = 200, **usage: int) -> Cost | None:
    """What a call with this usage costs by this file."""
    names = ("prompt_tokens", "completion_tokens") if "anthropic" not in url else ("input_tokens", "output_tokens")
    counted = dict(zip(names, (1_000_000, 100_000), strict=True)) | usage
    answer: dict[str, Any] = {"model": model, "usage": counted} if status == 200 else {"error": {"message": "no"}}
    request = {"model": model, "messages": [], "max_tokens": 9}
    made = exchange(url=url, request=json.dumps(request).encode(), response=json.dumps(answer).encode(), status=status)
    assert made.response is not None
    headers = (("content-type", "application/json"),)
    made = replace(made, response=replace(made.response, headers=headers))
    use_own_prices(parse_own_prices(prices))
    return call_cost(made, derive_call(made, PROFILES))


def usd(prices: str, url: str = OPENAI, model: str = "gpt-4o-mini", status: int = 200, **usage: int) -> Decimal | None:
    found = cost(prices, url, model, status, **usage)
    return None if found is None else found.usd


PRICE: Final = '[[price]]\nmodel = "{}"\ninput = 2\noutput = 10\n'


def test_a_model_of_ones_own_has_a_price_that_names_its_file() -> None:
    prices = PRICE.format("acme-*")
    found = cost(prices, OWN, "acme-7b")
    assert found == Cost(usd=Decimal(3), prices=parse_own_prices(prices).version)
    assert found.prices.startswith("own-prices/")
    assert parse_own_prices(PRICE.format("acme-7*")).version != found.prices, "another file is another version"
    assert usd(prices, OWN, "other-7b") is None


def test_ones_own_price_holds_before_the_list_and_the_first_that_fits_before_others() -> None:
    listed = usd(PRICE.format("other"))
    assert listed is not None
    assert usd(PRICE.format("gpt-4o-mini")) == 3 != listed
    assert usd('[[price]]\nmodel = "gpt-*"\ninput = 0\noutput = 0\n' + PRICE.format("*")) == 0


def test_a_discount_is_of_the_price_that_would_hold_otherwise() -> None:
    listed = usd(PRICE.format("other"))
    assert listed is not None
    assert usd('[[price]]\nmodel = "*"\nprovider = "openai"\ndiscount = 0.25') == listed * Decimal("0.75")
    assert usd('[[price]]\nmodel = "*"\nprovider = "openai"\ndiscount = 0.25', OWN, "acme-7b") is None


@pytest.mark.parametrize(
    ("condition", "fits"),
    [
        ('provider = "openai"', True),
        ('provider = "anthropic"', False),
        ('host = "*.openai.com"', True),
        ('host = "llm.internal"', False),
        (f"since = {DAY}", True),
        (f"since = {DAY + dt.timedelta(1)}", False),
        (f"until = {DAY + dt.timedelta(1)}", True),
        (f"until = {DAY}", False),
    ],
)
def test_a_price_may_hold_for_a_provider_a_host_or_a_time(condition: str, fits: bool) -> None:
    assert (usd(PRICE.format("gpt-4o-mini") + condition) == 3) is fits


def test_cached_tokens_are_a_part_of_the_input_or_apart_as_the_api_counts_them() -> None:
    prices = PRICE.format("*") + "cached_input = 0.5\ncache_write = 4\n"
    cached: dict[str, Any] = {"prompt_tokens_details": {"cached_tokens": 400_000}}
    assert usd(prices, **cached) == Decimal("1.2") + Decimal("0.2") + 1
    apart = {"cache_read_input_tokens": 400_000, "cache_creation_input_tokens": 100_000}
    assert usd(prices, ANTHROPIC, "claude-x", **apart) == 2 + Decimal("0.2") + Decimal("0.4") + 1
    assert usd(PRICE.format("*"), **cached) == 3, "without a price of its own, a cached token costs as any"


def test_a_price_of_a_call_needs_no_tokens_and_is_not_charged_for_a_failure() -> None:
    prices = '[[price]]\nmodel = "acme-7b"\ncall = 0.02'
    assert usd(prices, OWN, "acme-7b") == Decimal("0.02")
    assert usd(prices, OWN, "acme-7b", status=500) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "price"),
        ("price = 3", r"Expected `array`, got `int` - at `\$\.price`"),
        ('[[price]]\nmodel = "m"\ninptu = 1\noutput = 2', "unknown field `inptu`"),
        ("[[price]]\ninput = 1\noutput = 2", "missing required field `model`"),
        ('[[price]]\nmodel = "m"', "it has no price"),
        ('[[price]]\nmodel = "m"\ninput = 1', "belong together"),
        ('[[price]]\nmodel = "m"\ninput = -1\noutput = 2', "`input` is -1: give US dollars"),
        ('[[price]]\nmodel = "m"\ninput = nan\noutput = 2', "`input` is"),
        ('[[price]]\nmodel = "m"\ninput = "1 EUR"\noutput = 2', r"at `\$\.price\[0\]\.input`"),
        ('[[price]]\nmodel = "m"\ndiscount = 15', "such as 0.15 for 15 %"),
        ('[[price]]\nmodel = "m"\ndiscount = 0.1\ninput = 1\noutput = 1', "`discount` is of the list price"),
        ('[[price]]\nmodel = " "\ncall = 1', "`model` is empty"),
        ('[[price]]\nmodel = "m"\ncall = 1\nsince = 2026-02-01\nuntil = 2026-01-01', "`since` is not before"),
        ("[[price]", "."),
    ],
)
def test_a_mistake_is_named(text: str, problem: str) -> None:
    with pytest.raises(BadPrices, match=problem):
        parse_own_prices(text)


def test_json_says_the_same_as_toml_without_rounding() -> None:
    toml = parse_own_prices('[[price]]\nmodel = "m"\ninput = 0.1\noutput = 0.3\nsince = 2026-01-01')
    text = '{"price": [{"model": "m", "input": 0.1, "output": 0.3, "since": "2026-01-01"}]}'
    assert parse_own_prices(text, is_json=True).prices == toml.prices
    assert toml.prices[0].input == Decimal("0.1")


def test_the_store_server_and_its_helpers_are_given_the_prices_as_they_are() -> None:
    prices = parse_own_prices('[[price]]\nmodel = "m"\ninput = 0.1\noutput = 0.3\nsince = 2026-01-01')
    configs: tuple[StoreServerConfig | HelperConfig, ...] = (
        StoreServerConfig(data="/data", own_prices=prices),
        HelperConfig(database_url="postgresql://", redaction_key=b"k", memory_limit=1, own_prices=prices),
    )
    for config in configs:
        read = msgspec.json.decode(msgspec.json.encode(config), type=type(config))
        assert read.own_prices == prices
        assert isinstance(read.own_prices, OwnPrices)
