"""Measure the keys of real traffic, and their cost: `python -m bench.keys [--quick] [--json] [--rounds N] [--show]`.

Every exchange of the shared corpus is routed, keyed and derived; streamed answers are compared with what the official
SDKs make of them, as in the tests. Prints how much is understood, the repeated keys and the collisions among them, and
the CPU of an exchange in this process, the least of all rounds, without an event loop.
"""

import argparse
import gc
import json
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from bench.figures import machine
from calls.derive import derive_keyed_call
from calls.keys.key import make_key, raw_digest
from calls.model import Call, Exchange
from store.active_profiles import load_profiles
from tests.calls import test_cloud_sdks, test_openai_sdks, test_sdks
from tests.calls.judging import differences, without_defaults
from tests.calls.recorded import exchange
from tests.support.corpus import RecordedExchange, cassettes

PROFILES = load_profiles()

MEGABYTE = 1_000_000


@dataclass(frozen=True, slots=True)
class SeenExchange:
    """An exchange of the corpus, with its route, key and call."""

    cassette: str
    recorded: RecordedExchange
    exchange: Exchange
    call: Call
    strict: str

    @property
    def size(self) -> int:
        """Return the bytes of both bodies, as they were transferred."""
        return len(self.recorded.request_body) + len(self.recorded.response_body)


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    what: str
    value: float | int
    note: str = ""


def all_seen() -> list[SeenExchange]:
    """Route, key and derive every exchange of the corpus."""
    found = []
    for cassette in cassettes():
        for recorded in cassette.exchanges:
            one = exchange(recorded, cassette.name)
            key = make_key(one.request, PROFILES)
            found.append(SeenExchange(cassette.name, recorded, one, derive_keyed_call(one, key), key.strict_key))
    return found


def count_understood(exchanges: Sequence[SeenExchange]) -> Iterator[Figure]:
    """Count routes, calls, complete streams and unknown fields."""
    kinds = Counter(one.call.kind for one in exchanges)
    yield Figure("exchanges", len(exchanges), ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common()))
    models = [one for one in exchanges if one.call.kind == "model"]
    routed = sum(one.call.dialect != "generic" for one in models)
    yield Figure("of models, routed to a dialect", routed, f"of {len(models):,}")
    everything = sum(one.call.dialect != "generic" for one in exchanges)
    yield Figure(
        "of all, routed to a dialect", everything, f"{len({one.call.dialect for one in exchanges}) - 1} dialects"
    )
    answered = [one for one in models if one.recorded.status == 200 and one.recorded.response_body]
    yield Figure(
        "of models, with an answer that was read", sum(_read(one) for one in answered), f"of {len(answered):,}"
    )
    unknown = Counter(word for one in exchanges for word in one.call.warnings if "not classified" in word)
    fields = len({word.partition(" ")[0] for word in unknown})
    yield Figure("exchanges with an unknown field", sum(map(_has_unknown, exchanges)), f"{fields} different fields")
    yield Figure(
        "bodies that count by their raw bytes",
        sum("raw bytes" in word for one in exchanges for word in one.call.warnings),
    )


def _read(one: SeenExchange) -> bool:
    return one.call.answer not in (None, {}, [])


def _has_unknown(one: SeenExchange) -> bool:
    return any("not classified" in word for word in one.call.warnings)


def compare_with_sdks(exchanges: Sequence[SeenExchange]) -> Iterator[Figure]:
    """Compare the streams with what the official SDKs make of the same bytes, in pieces of random sizes."""
    streams = [one for one in exchanges if one.call.streamed]
    verdicts = Counter(_verdict(one) for one in streams)
    yield Figure("streams", len(streams))
    yield Figure("streams that say that they are whole", sum(one.call.complete for one in streams))
    for name in (
        "equal to the SDK's",
        "equal but for habits that are listed",
        "different",
        "that no SDK at hand reads",
    ):
        yield Figure(f"streams {name}", verdicts[name])


def _verdict(one: SeenExchange) -> str:
    for judges in (test_sdks, test_openai_sdks):
        # What Writer streams as completions only its own SDK reads.
        if one.call.dialect in judges.SDKS and (judges is test_sdks or one.call.provider != "writer"):
            return _by_habits(judges.judged, one)
    if one.call.dialect not in test_cloud_sdks.STREAMS:
        return "that no SDK at hand reads"
    ours, theirs = test_cloud_sdks.compare_answers(one.cassette, one.recorded, one.call)
    plain = [without_defaults(json.loads(json.dumps(side, default=str))) for side in (ours, theirs)]
    return "different" if list(differences(*plain)) else "equal to the SDK's"


def _by_habits(judge: Callable[[str, RecordedExchange, Call], tuple[set[str], list[str]]], one: SeenExchange) -> str:
    habits, places = judge(one.cassette, one.recorded, one.call)
    return "different" if places else "equal but for habits that are listed" if habits else "equal to the SDK's"


def collisions(exchanges: Iterable[SeenExchange]) -> list[list[SeenExchange]]:
    """Return exchanges of a cassette with one key, but with different requests and different answers."""
    groups: defaultdict[tuple[str, str], list[SeenExchange]] = defaultdict(list)
    for one in exchanges:
        groups[one.cassette, one.call.key].append(one)
    return [
        group
        for group in groups.values()
        if len({one.strict for one in group}) > 1 and len({one.recorded.response_body for one in group}) > 1
    ]


def count_repeats(exchanges: Sequence[SeenExchange], groups: Sequence[Sequence[SeenExchange]]) -> Iterator[Figure]:
    """Count keys, repeats and collisions."""
    keys = Counter((one.cassette, one.call.key) for one in exchanges)
    yield Figure("keys, cassette by cassette", len(keys))
    yield Figure(
        "keys that recur with the same request",
        sum(count > 1 for count in keys.values()) - len(groups),
        "honest repeats",
    )
    yield Figure("keys of different requests and answers", len(groups), f"{sum(map(len, groups))} exchanges")


def time_keys(exchanges: Sequence[SeenExchange], rounds: int) -> Iterator[Figure]:
    """Measure the CPU of making the key alone, and of making key and call."""
    gc.collect()
    gc.freeze()
    raw, key, both = _best(exchanges, rounds)
    models = [n for n, one in enumerate(exchanges) if one.call.kind == "model"]
    size = sum(one.size for one in exchanges) / MEGABYTE
    yield Figure("µs, raw digest, median", _median(raw))
    yield Figure("µs, key, median", _median(key))
    yield Figure("µs, key and call, median", _median(both), f"{len(exchanges):,} exchanges, {size:.1f} MB")
    yield Figure("µs, key and call, median of models", _median([both[n] for n in models]), f"{len(models):,} exchanges")
    yield Figure("µs, key and call, 99 of 100 below", round(statistics.quantiles(both, n=100)[-1], 1))
    yield Figure("µs, key and call, mean", round(statistics.mean(both), 1))
    yield Figure("µs, key and call, per MB", round(sum(both) / size, 0))


def _median(values: Sequence[float]) -> float:
    return round(statistics.median(values), 1)


def _best(exchanges: Sequence[SeenExchange], rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Return the microseconds of each exchange for the raw digest, the key, and key and call."""
    least = [[float("inf")] * len(exchanges) for _ in range(3)]
    clock = time.thread_time_ns
    for _ in range(rounds):
        for n, one in enumerate(exchanges):
            request = one.exchange.request
            start = clock()
            raw_digest(request)
            digested = clock()
            key = make_key(request, PROFILES)
            keyed_at = clock()
            derive_keyed_call(one.exchange, key)
            spans = (digested - start, keyed_at - digested, clock() - digested)
            for column, span in zip(least, spans, strict=True):
                column[n] = min(column[n], span / 1000)
    return least[0], least[1], least[2]


def show_collisions(groups: Sequence[Sequence[SeenExchange]]) -> Iterator[str]:
    """Print where each collision is, and in what the requests differ."""
    for group in groups:
        yield f"{group[0].cassette}: {group[0].recorded.method} {group[0].recorded.url[:100]}"
        first = group[0].call.request
        for one in group[1:]:
            places = [*differences(first, one.call.request)][:5]
            yield f"    {', '.join(places) or one.recorded.url[:120]}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.keys", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="without the judges, and one round")
    parser.add_argument("--json", action="store_true", help="one figure a line")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="name each collision")
    arguments = parser.parse_args()
    exchanges = all_seen()
    collision_groups = collisions(exchanges)
    figures = [*count_understood(exchanges), *count_repeats(exchanges, collision_groups)]
    figures += [] if arguments.quick else compare_with_sdks(exchanges)
    figures += time_keys(exchanges, 1 if arguments.quick else arguments.rounds)
    if arguments.json:
        for figure in figures:
            print(json.dumps(asdict(figure)))
        return
    print(machine())
    for figure in figures:
        value = f"{figure.value:,}" if isinstance(figure.value, int) else f"{figure.value:,.1f}"
        print(f"{figure.what:<44} {value:>10}   {figure.note}")
    if arguments.show:
        print("\n".join(show_collisions(collision_groups)))


if __name__ == "__main__":
    main()
