"""Count what redaction wrongly takes for a secret in real traffic: `python -m bench.redaction_false [--show]`.

Prints every distinct value that is replaced in the bodies of the corpus, by what found it. `SECRETS` and `NO_SECRETS`
say for each value, by its digest, whether it is a secret, so this file contains no values. A value that is in neither
is listed.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from calls.codec.encoding import Undecodable, decode_content
from calls.placeholder import PREFIX
from calls.redaction.redactor import Redactor
from tests.support.corpus import cassettes


class Hit(NamedTuple):
    """A value that was replaced in a body."""

    kind: str
    """The letter of its placeholder; `*` for a value that is too short for one."""

    value: bytes
    before: bytes
    """The text before it."""


def bodies() -> Iterator[tuple[bytes, str | None]]:
    """Yield the decoded bodies of the corpus with their media types."""
    for cassette in cassettes():
        for one in cassette.exchanges:
            for headers, body in ((one.request_headers, one.request_body), (one.response_headers, one.response_body)):
                by_name = {name.lower(): value for name, value in headers}
                try:
                    yield decode_content(body, by_name.get("content-encoding")), by_name.get("content-type")
                except Undecodable:
                    yield body, by_name.get("content-type")


def hits(old: bytes, new: bytes) -> Iterator[Hit]:
    """Yield what was replaced between two bodies of the same length."""
    at = 0
    while at < len(old):
        if old[at] == new[at]:
            at += 1
            continue
        start = at if new[at : at + 1] == b"*" else max(0, new.rfind(PREFIX, 0, at + len(PREFIX)))
        end = at
        while end < len(old) and (old[end] != new[end] or new[end : end + 1].isalnum()):
            end += 1
        yield Hit(
            chr(new[start + len(PREFIX)]) if new[at] != 0x2A else "*", old[start:end], old[max(0, start - 40) : start]
        )
        at = end


def digest(value: bytes) -> str:
    """Return the name of a value in `SECRETS` and `NO_SECRETS`."""
    return hashlib.sha256(value).hexdigest()[:12]


def main() -> None:
    """Count the hits of each kind, and the false ones among them."""
    parser = argparse.ArgumentParser(description=__doc__.partition(":")[0])
    parser.add_argument("--show", action="store_true", help="print each value that was found")
    show = parser.parse_args().show
    for personal_data in (False, True):
        _report(Redactor(key=b"k" * 32, personal_data=personal_data), show=show, personal_data=personal_data)


def _report(redactor: Redactor, *, show: bool, personal_data: bool) -> None:
    count = size = touched = 0
    values_by_kind: Counter[tuple[str, bytes]] = Counter()
    around: dict[tuple[str, bytes], bytes] = {}
    for body, media in bodies():
        count, size = count + 1, size + len(body)
        new = redactor.redact_body(body, media)[0]
        touched += new != body
        for hit in hits(body, new) if new != body else ():
            if personal_data and hit.kind != "D":
                continue
            values_by_kind[hit.kind, hit.value] += 1
            around[hit.kind, hit.value] = hit.before
    label = "personal data" if personal_data else "secrets"
    print(f"{label}: {touched} of {count} bodies ({size >> 20} MiB) touched, {len(values_by_kind)} values")
    for kind in sorted({kind for kind, _ in values_by_kind}):
        values = [value for of, value in values_by_kind if of == kind]
        wrong = [value for value in values if digest(value) in NO_SECRETS]
        unknown = [value for value in values if digest(value) not in NO_SECRETS | SECRETS]
        print(f"  {kind}: {len(values)} values, {len(wrong)} of them no secrets, {len(unknown)} not judged")
        for value in values if show else unknown:
            print("   ", digest(value), values_by_kind[kind, value], around[kind, value][-30:], value[:60])


SECRETS = frozenset(
    [
        "9caf06bb4436",
        "3c42a1d04a07",
        "b68919aff001",
        "dc88cb47691d",
        "98483c6eb40b",
        "9415ef40f621",
        "8411ff272fcd",
        "5dec7e1c36e8",
        "6738b32f3283",
        "4c806362b613",
        "6ff2850268b7",
        "9a5de0465f9c",
        "a939695f30bc",
        "1823b859aa2b",
        "e3206869d50d",
        "e1e2f5a58acc",
        "0367dc3db9db",
        "61e45b480dea",
        "a3f2f8a53d76",
        "f689c96384f1",
        "c6a9b44f70a3",
        "3a93df7fa3bb",
        "e233d4a29013",
        "0b2c606ff22d",
        "df3925c3b100",
        "7146c13573b9",
        "cb53a13f5865",
        "9bf494f10fbf",
        "e2c3fc6c1532",
        "6c59f3a8743b",
        "f2b4a94ae86d",
        "88f363010592",
        "66899fd42ac0",
        "dfd8d984640c",
        "fdc2a4abc538",
        "836f82db9912",
    ]
)
"""Values of the corpus that are secrets, or imitate them."""

NO_SECRETS: frozenset[str] = frozenset()
"""Values of the corpus that are replaced and are no secrets."""


if __name__ == "__main__":
    main()
