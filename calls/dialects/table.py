"""All dialects: every `DIALECT` that a module of this package declares, in the order in which they are asked.

The order is by precedence, then by name. It matters only between precedences, because dialects of the same one never claim
the same request. Most have 0: they know their API by a path or a host of its own. The others come after them:

1    openai_rest        what OpenAI's other dialects leave at OpenAI's hosts
2    text_generation    every path of hosts that serve nothing else
3    rerank             a path that several services have
4    mcp                any path, by headers
5    a2a                JSON-RPC methods that MCP has too
6    graphql            a path that any host may have
7    searches           every path of search services
8    ag_ui, vectors     any path, by the body; paths that are not only a database's
9    generic            everything

Their modules are imported when the first of them is looked up: that takes a quarter of a proxy worker's start.
"""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Final, overload

import calls.dialects

if TYPE_CHECKING:
    from calls.dialects.dialect import Dialect


@cache
def _all_dialects() -> "tuple[Dialect, ...]":
    return tuple(sorted(_find_dialects(), key=lambda dialect: (dialect.precedence, dialect.name)))


def _find_dialects() -> "Iterator[Dialect]":
    from calls.dialects.dialect import Dialect

    for module in pkgutil.walk_packages(calls.dialects.__path__, f"{calls.dialects.__name__}."):
        if module.name != __name__:
            declared = getattr(importlib.import_module(module.name), "DIALECT", None)
            if isinstance(declared, Dialect):
                yield declared


@cache
def _dialects_by_name() -> "dict[str, Dialect]":
    return {dialect.name: dialect for dialect in _all_dialects()}


class _Dialects(Sequence["Dialect"]):
    @overload
    def __getitem__(self, index: int) -> "Dialect": ...
    @overload
    def __getitem__(self, index: slice) -> "tuple[Dialect, ...]": ...
    def __getitem__(self, index: int | slice) -> "Dialect | tuple[Dialect, ...]":
        return _all_dialects()[index]

    def __len__(self) -> int:
        return len(_all_dialects())


class _DialectsByName(Mapping[str, "Dialect"]):
    def __getitem__(self, name: str) -> "Dialect":
        return _dialects_by_name()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_dialects_by_name())

    def __len__(self) -> int:
        return len(_dialects_by_name())


DIALECTS: Final[Sequence["Dialect"]] = _Dialects()
"""All dialects, in the order in which they are asked."""

BY_NAME: Final[Mapping[str, "Dialect"]] = _DialectsByName()
