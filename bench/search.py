"""Compare ways to index words: `python -m bench.search [--texts N] [--rounds N] [--json]`.

One embedded Postgres has three tables: the words of `store.search.words` as a tsvector, Postgres's
`to_tsvector('simple', …)`, and trigrams (`pg_trgm`). The texts are pieces of Python's standard library, prose and code,
with sentences in several languages among them. Prints which words are found, the bytes of index and column, the time to
store and index, and the time of queries.
"""

import argparse
import asyncio
import re
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import batched, cycle, islice
from pathlib import Path
from typing import Any, Final

import asyncpg

from bench.figures import Spread, machine, print_json
from store.embedded.postgres import ensure_server
from store.search.query import InvalidQuery, SearchQuery
from store.search.words import word_list

PIECE: Final = 1000
"""Characters of a text."""

BATCH: Final = 500
REPEATS: Final = 15
"""The number of times that each query is sent in a round."""


@dataclass(frozen=True, slots=True)
class Case:
    """A text, and a query that must find it or must not."""

    kind: str
    text: str
    query: str
    is_hit: bool = True


CASES: Final = (
    Case("Latin", "Refund the ORDER within thirty days.", "refund order"),
    Case("Latin", "Bitte erstatten Sie die Straße Nr. 7 in München.", "strasse"),
    Case("Latin", "Bitte erstatten Sie die Straße Nr. 7 in München.", "MÜNCHEN"),
    Case("Latin", "Le client demande un remboursement de la commande.", "remboursement"),
    Case("Cyrillic", "Прошу оформить ВОЗВРАТ средств за заказ.", "возврат"),
    Case("Cyrillic", "Прошу оформить ВОЗВРАТ средств за заказ.", '"средств за заказ"'),
    Case("Arabic", "يرجى استرداد المبلغ المدفوع للطلب", "استرداد"),
    Case("Arabic", "يرجى استرداد المبلغ المدفوع للطلب", '"استرداد المبلغ"'),
    Case("Chinese", "请帮我申请退款,订单号是四七一一。", "退款"),
    Case("Chinese", "请帮我申请退款,订单号是四七一一。", "订单号"),
    Case("Chinese", "请帮我申请退款,订单号是四七一一。", "号"),
    Case("Japanese", "先週の注文の返金をお願いします。", "返金"),
    Case("Japanese", "先週の注文の返金をお願いします。", "注文"),
    Case("Japanese", "クレジットカードの番号を確認してください。", "カード"),
    Case("Thai", "กรุณาคืนเงินค่าสินค้าให้ฉันด้วย", "คืนเงิน"),
    Case("Thai", "กรุณาคืนเงินค่าสินค้าให้ฉันด้วย", "สินค้า"),
    Case("code", "def refund_order_zq(order_id): return OrderServiceZq.refund(order_id)", "refund_order_zq"),
    Case("code", "def refund_order_zq(order_id): return OrderServiceZq.refund(order_id)", "OrderServiceZq"),
    Case("code", "def refund_order_zq(order_id): return OrderServiceZq.refund(order_id)", "OrderServiceZq.refund"),
    Case("code", "let total = items_zq[0]->price * QUANTITY_ZQ;", "items_zq"),
    Case("pointers", 'differs at "/messages_zq/0/content" and at $.choices_zq[0].message', "/messages_zq/0/content"),
    Case("pointers", 'differs at "/messages_zq/0/content" and at $.choices_zq[0].message', "messages_zq"),
    Case("pointers", 'differs at "/messages_zq/0/content" and at $.choices_zq[0].message', "choices_zq[0]"),
    Case("pointers", "https://api.zq-shop.example/v1/orders/4711?expand=items", "orders/4711"),
    Case("parts of words", "The zqrefundable deposit was kept.", "zqrefund*"),
    Case("parts of words", "The nonzqrefund deposit was kept.", "zqrefund", is_hit=False),
    Case("parts of words", "The nonzqrefund deposit was kept.", '"zqrefund deposit"', is_hit=False),
)

QUERIES: Final[Mapping[str, str]] = {
    "common word": "import",
    "two words": "thread lock",
    "phrase": '"return self"',
    "code name": "get_running_loop",
    "two characters": "退款",
    "prefix": "serializ*",
    "absent": "zzqqxx",
}


class OurWords:
    """The words of `store.search`."""

    name = "ours"
    columns = "words tsvector"
    index = "USING gin (words)"
    insert = "$2::text::tsvector"

    def stored_form(self, text: str) -> str:
        """Return what is sent to Postgres for a text."""
        return " ".join(f"'{word}':{place}" for place, word in enumerate(word_list(text), 1) if word)

    def condition(self, query: str) -> tuple[str, list[str]]:
        """Return the condition in SQL, and its parameters."""
        return "words @@ $1::text::tsquery", [SearchQuery.parse(query).as_tsquery()]


class SimpleWords:
    """The parser of Postgres, without a language."""

    name = "simple"
    columns = "words tsvector"
    index = "USING gin (words)"
    insert = "to_tsvector('simple', $2::text)"

    def stored_form(self, text: str) -> str:
        """Return the text itself."""
        return text

    def condition(self, query: str) -> tuple[str, list[str]]:
        """Return the condition in SQL, and its parameters. Prefixes are left out: websearch_to_tsquery does not know
        them.
        """
        if query.endswith("*"):
            return "words @@ to_tsquery('simple', $1)", [f"{query[:-1]}:*"]
        return "words @@ websearch_to_tsquery('simple', $1)", [query]


class Trigrams:
    """Groups of three characters, by which any part of a text is found."""

    name = "trigrams"
    columns = "body text"
    index = "USING gin (body gin_trgm_ops)"
    insert = "$2::text"

    def stored_form(self, text: str) -> str:
        """Return the text itself."""
        return text

    def condition(self, query: str) -> tuple[str, list[str]]:
        """Return a condition that each word, or phrase in quotes, is a part of the text."""
        parts = [quoted or bare.rstrip("*") for quoted, bare in re.findall(r'"([^"]*)"|(\S+)', query)]
        escaped = [re.sub(r"([\\%_])", r"\\\1", part) for part in parts]
        return " AND ".join(f"body ILIKE ${n}" for n in range(1, len(parts) + 1)), [f"%{part}%" for part in escaped]


type Way = OurWords | SimpleWords | Trigrams


def library_texts() -> Iterator[str]:
    """Yield pieces of Python's standard library in a fixed order."""
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" in file.parts:
            continue
        text = file.read_text("utf-8", "replace").replace("\0", "")
        yield from (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def all_texts(count: int) -> list[str]:
    """Return the texts of the library; every fiftieth has the texts of a case."""
    cases = cycle(dict.fromkeys(case.text for case in CASES))
    return [f"{text}\n{next(cases)}" if n % 50 == 0 else text for n, text in enumerate(islice(library_texts(), count))]


async def fill(connection: asyncpg.Connection, way: Way, texts: Sequence[str]) -> float:
    """Create the table of one way; return the seconds of storing and indexing."""
    table = f"texts_{way.name}"
    await connection.execute(f"DROP TABLE IF EXISTS {table}")
    await connection.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, {way.columns})")
    await connection.execute(f"CREATE INDEX {table}_idx ON {table} {way.index}")
    began = time.perf_counter()
    for some in batched(enumerate(texts), BATCH):
        rows = [(number, way.stored_form(text)) for number, text in some]
        await connection.executemany(f"INSERT INTO {table} VALUES ($1, {way.insert})", rows)
    # A search must not read what GIN has not merged yet.
    await connection.execute(f"VACUUM ANALYZE {table}")
    return time.perf_counter() - began


async def find(connection: asyncpg.Connection, way: Way, query: str) -> set[int]:
    """Return the texts that are found, at most a thousand."""
    condition, values = way.condition(query)
    rows = await connection.fetch(f"SELECT id FROM texts_{way.name} WHERE {condition} LIMIT 1000", *values)
    return {row["id"] for row in rows}


async def is_right(connection: asyncpg.Connection, way: Way, case: Case, texts: Sequence[str]) -> bool:
    """Whether a query finds the texts of its case, or none of them if it must not."""
    try:
        found = await find(connection, way, case.query)
    except (InvalidQuery, asyncpg.PostgresError):
        return False
    those = {number for number, text in enumerate(texts) if case.text in text}
    assert those, "there are too few texts for all cases"
    return those <= found if case.is_hit else not those & found


async def time_query(connection: asyncpg.Connection, way: Way, query: str) -> float:
    """Return the median milliseconds of a query."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        await find(connection, way, query)
        times.append((time.perf_counter() - began) * 1000)
    return sorted(times)[REPEATS // 2]


async def sizes(connection: asyncpg.Connection, way: Way) -> tuple[int, int]:
    """Return the bytes of the index and of the column."""
    table, column = f"texts_{way.name}", way.columns.partition(" ")[0]
    index = await connection.fetchval(f"SELECT pg_relation_size('{table}_idx')")
    return index, await connection.fetchval(f"SELECT sum(pg_column_size({column}))::bigint FROM {table}")


async def measure(dsn: str, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Measure all ways in turns."""
    connection = await asyncpg.connect(dsn)
    ways: list[Way] = [OurWords(), SimpleWords()]
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
        ways.append(Trigrams())
    except asyncpg.PostgresError as error:
        print_json({"trigrams": f"not measured: {error}"})
    filled: dict[str, list[float]] = {way.name: [] for way in ways}
    times: dict[str, dict[str, list[float]]] = {way.name: {name: [] for name in QUERIES} for way in ways}
    for number in range(rounds):
        # Another one is the first in each round.
        for way in (*ways[number % len(ways) :], *ways[: number % len(ways)]):
            filled[way.name].append(await fill(connection, way, texts))
        for name, query in QUERIES.items():
            for way in ways:
                times[way.name][name].append(await time_query(connection, way, query))
    report: dict[str, Any] = {}
    for way in ways:
        index, column = await sizes(connection, way)
        right = [(case, await is_right(connection, way, case, texts)) for case in CASES]
        report[way.name] = {
            "right": {
                kind: f"{sum(ok for case, ok in right if case.kind == kind)}/{sum(case.kind == kind for case in CASES)}"
                for kind in dict.fromkeys(case.kind for case in CASES)
            },
            "wrong": [f"{case.kind}: {case.query}" for case, ok in right if not ok],
            "index bytes a text": index / len(texts),
            "column bytes a text": column / len(texts),
            "seconds for 10,000 texts": Spread.of(seconds * 10_000 / len(texts) for seconds in filled[way.name]),
            "query ms": {name: Spread.of(found) for name, found in times[way.name].items()},
            "found": {name: len(await find(connection, way, query)) for name, query in QUERIES.items()},
        }
    await connection.close()
    return report


def print_table(report: Mapping[str, Any]) -> None:
    """Print the report as a Markdown table for docs/scale.md."""
    ways = list(report)
    kinds, bytes_of = report[ways[0]]["right"], ("index bytes a text", "column bytes a text")
    rows = [(f"right answers: {kind}", [report[way]["right"][kind] for way in ways]) for kind in kinds]
    rows += [(name, [f"{report[way][name]:,.0f}" for way in ways]) for name in bytes_of]
    rows.append(("seconds for 10,000 texts", [f"{report[way]['seconds for 10,000 texts']:.1f}" for way in ways]))
    for name in QUERIES:
        cells = [f"{report[way]['query ms'][name]:.1f} ({report[way]['found'][name]})" for way in ways]
        rows.append((f"query ms: {name}", cells))
    lines = [("", ways), ("---", ["---"] * len(ways)), *rows]
    for head, cells in lines:
        print(f"| {' | '.join((head, *cells))} |")
    for way in ways:
        print(f"{way} is wrong in: {'; '.join(report[way]['wrong']) or 'nothing'}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.search", description=__doc__)
    parser.add_argument("--texts", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    texts = all_texts(arguments.texts)
    base = Path(tempfile.mkdtemp(prefix="playhead-bench-"))
    base.chmod(0o711)
    began = machine()
    with ensure_server(base / "pg") as server:
        report = asyncio.run(measure(server.dsn, texts, arguments.rounds))
    if arguments.json:
        print_json({"texts": len(texts), "report": report})
    else:
        print(f"{len(texts)} texts of {sum(map(len, texts)) // len(texts)} characters, {arguments.rounds} rounds")
        print_table(report)
    print_json({"machine": began, "cases": [asdict(case) for case in CASES] if arguments.json else len(CASES)})


if __name__ == "__main__":
    main()
