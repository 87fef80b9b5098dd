"""Words of any language, and what PostgreSQL makes of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text as sql

from store.database.connection import Database
from store.search.query import InvalidQuery, SearchQuery
from store.search.snippets import make_snippet
from store.search.words import distinct_words, find_words
from tests.store.search.vectors import word_vector


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Refund the ORDER, please!", ["refund", "the", "order", "please"]),
        ("refund_order(id=17)", ["refund", "order", "id", "17"]),
        ("/messages/0/content", ["messages", "0", "content"]),
        ("a@example.com", ["a", "example", "com"]),
        ("Straße Ünïcode ﬁn ＡＢＣ", ["strasse", "unicode", "fin", "abc"]),
        ("申请退款 now", ["申请", "请退", "退款", "款", "now"]),
        ("AI助手", ["ai", "助手", "手"]),
        ("возврат средств", ["возврат", "средств"]),
        ("استرداد المبلغ", ["استرداد", "المبلغ"]),
        ("Café cafe\u0301 naïve Łódź smørrebrød", ["cafe", "cafe", "naive", "lodz", "smorrebrod"]),
        ("Việt Nam, Đà Nẵng", ["viet", "nam", "da", "nang"]),
        ("Vie\u0323\u0302t İstanbul ısı", ["viet", "istanbul", "isi"]),
        ("άλφα Σίσυφος", ["αλφα", "σισυφοσ"]),
        ("Ёлка за́мок й и\u0306", ["елка", "замок", "й", "й"]),
        ("हिन्दी में की", ["हिन्दी", "में", "की"]),
        ("க்ஷ தமிழ்", ["க்ஷ", "தமிழ்"]),
        ("مُحَمَّد أحمد كـتـاب", ["محمد", "احمد", "كتاب"]),
        ("שָׁלוֹם", ["שלום"]),
        ("ﾃﾞｰﾀ", ["デー", "ータ", "タ"]),
        ("データ", ["デー", "ータ", "タ"]),
        ("か\u3099 が か", ["が", "が", "か"]),
        ("한국어 \u1112\u1161\u11ab", ["한국어", "한"]),
        ("", []),
        ("-- // ()", []),
    ],
)
def test_words_are_found_in_any_language(text: str, words: list[str]) -> None:
    assert [word.text for word in find_words(text)] == words


@given(st.text())
def test_each_word_is_where_it_says(text: str) -> None:
    for word in find_words(text):
        assert 0 <= word.start < word.end <= len(text)


@given(st.text())
def test_any_text_is_a_query_or_is_refused(text: str) -> None:
    try:
        query = SearchQuery.parse(text)
    except InvalidQuery:
        return
    snippet = make_snippet(text, query.phrases)
    assert all(0 <= start < end <= len(snippet.text) for start, end in snippet.highlights)


TEXTS = st.text(st.sampled_from("ab '\"\\:*&|!()<->_退款é́ﬁ\u0000\u0e01\n"), max_size=40)


@pytest.mark.parametrize("length", [63, 64, 65, 66, 130])
@pytest.mark.parametrize("frame", ["{}", " {}", "{} ", "a {}", "{} a", "a {} b {}", "{0} {0}"])
def test_a_long_word_counts_by_its_beginning_wherever_it_is(length: int, frame: str) -> None:
    text = frame.format(*("w" * length,) * 2)
    words = [f"{word.text}:{number}" for number, word in enumerate(find_words(text), 1)]
    assert word_vector(text).replace("'", "").split() == words
    assert max(map(len, text.split())) < 65 or "w" * 65 not in word_vector(text)


@given(st.lists(TEXTS | st.sampled_from(["w" * 65, "a " + "w" * 64, "a-B a", "w" * 64 + "ß"]), max_size=5))
def test_a_group_has_the_words_of_its_texts(texts: list[str]) -> None:
    assert distinct_words(texts) == {word.text for text in texts for word in find_words(text) if word.text}


async def test_postgres_reads_every_vector_and_every_query(database: Database) -> None:
    vectors, queries = [], []

    @given(TEXTS)
    def collect(text: str) -> None:
        vectors.append(word_vector(text))
        try:
            queries.append(SearchQuery.parse(text).as_tsquery())
        except InvalidQuery:
            pass

    collect()
    frequent = "one two one ünö " * 300
    async with database.connection() as connection:
        for text in ("one two one", "one two, ONE ж"):
            found = await connection.fetchval("SELECT $1::text::tsvector::text", word_vector(text))
            assert found.startswith("'one':1,3 'two':2"), text
        assert await connection.fetchval("SELECT length($1::text::tsvector)", word_vector(frequent)) == 3
        await connection.fetch("SELECT one::tsvector FROM unnest($1::text[]) AS one", vectors)
        await connection.fetch("SELECT one::tsquery FROM unnest($1::text[]) AS one", queries)


FOUND = [
    ("Please refund order 17.", "refund"),
    ("Please refund order 17.", "REFUND 17"),
    ("Please refund order 17.", '"refund order"'),
    ("Please refund order 17.", "ref*"),
    ("Please refund order 17.", "refund -invoice"),
    ("Please refund order 17.", "invoice OR refund"),
    ("call delete_user(id=3)", "delete_user"),
    ("call delete_user(id=3)", "delete_*"),
    ("see /messages/0/content", "/messages/0/content"),
    ("我要申请退款谢谢", "退款"),
    ("我要申请退款谢谢", "申请退款"),
    ("我要申请退款谢谢", "款"),
    ("返金をお願いします", "返金"),
    ("ขอคืนเงินด้วย", "คืนเงิน"),
    ("Straße 5", "STRASSE"),
    ("Un café crème", "cafe creme"),
    ("Un cafe creme", "café crème"),
    ("Un cafe\u0301 cre\u0300me", '"café crème"'),
    ("Đơn hàng của tôi", "don hang"),
    ("Ｒｅｆｕｎｄ １２", "refund 12"),
    ("ﾃﾞｰﾀを返す", "データ"),
    ("データを返す", "ﾃﾞｰﾀ"),
    ("मुझे हिन्दी में बताओ", "हिन्दी"),
    ("मुझे हिन्दी में बताओ", "हिन्*"),
    ("كِتابٌ جديد", "كتاب"),
    ("أين الطلب", "اين"),
    ("한국어를 배워요", "한국"),
    ("환불을 요청한 고객", "고객 환불"),
    ("환불을 요청한 고객", '"요청한 고객"'),
]
NOT_FOUND = [
    ("한국어를 배워요", '"한국"'),
    ("한국어를 배워요", "배워 -한국"),
    ("한국어를 배워요", "국어"),
    ("मुझे हिन्दी में बताओ", "हन"),
    ("かばん", "がばん"),
    ("мой", "мои"),
    ("Please refund order 17.", "refunds"),
    ("Please refund order 17.", '"order refund"'),
    ("Please refund order 17.", "refund -order"),
    ("Please refund order 17.", "refund invoice"),
    ("call delete_user(id=3)", "user_delete"),
    ("我要申请退款谢谢", "款退"),
]


async def test_queries_find_what_they_should_and_nothing_else(database: Database) -> None:
    fit = "SELECT CAST(CAST(:vector AS text) AS tsvector) @@ CAST(CAST(:query AS text) AS tsquery)"
    async with database.transaction() as connection:
        for cases, expected in ((FOUND, True), (NOT_FOUND, False)):
            for text, query in cases:
                values = {"vector": word_vector(text), "query": SearchQuery.parse(query).as_tsquery()}
                assert await connection.scalar(sql(fit), values) is expected, (text, query)


@pytest.mark.parametrize(("text", "query"), FOUND)
def test_a_snippet_shows_what_a_query_found(text: str, query: str) -> None:
    assert make_snippet(text, SearchQuery.parse(query).phrases).highlights


@pytest.mark.parametrize("text", ["", "-", '""', "*", "-refund", "OR", " ".join("a" * 60)])
def test_what_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidQuery, match="q"):
        SearchQuery.parse(text)


def test_a_snippet_is_cut_around_what_was_found() -> None:
    text = f"{'lorem ipsum ' * 50}a refund of the order{' dolor sit' * 50}"
    snippet = make_snippet(text, SearchQuery.parse('refund "the order"').phrases)
    assert len(snippet.text) < 250
    assert [snippet.text[start:end] for start, end in snippet.highlights] == ["refund", "the order"]
    assert snippet.text.startswith("…")
    assert snippet.text.endswith("…")


@given(st.text(alphabet=st.one_of(st.characters(max_codepoint=127), st.sampled_from("ßÜ申请é_")), max_size=60))
def test_ascii_texts_have_the_words_that_are_found_in_any_text(text: str) -> None:
    expected = [(word.text, str(position)) for position, word in enumerate(find_words(text), 1) if word.text]
    given = [tuple(one.replace("'", "").split(":")) for one in word_vector(text).split()]
    assert given == expected
