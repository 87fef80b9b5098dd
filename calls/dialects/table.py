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
8    vectors            paths that are not only a database's
9    generic            everything
"""

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Final

import calls.dialects
from calls.dialects.dialect import Dialect


def _find_dialects() -> Iterator[Dialect]:
    for module in pkgutil.walk_packages(calls.dialects.__path__, f"{calls.dialects.__name__}."):
        if module.name != __name__:
            declared = getattr(importlib.import_module(module.name), "DIALECT", None)
            if isinstance(declared, Dialect):
                yield declared


DIALECTS: Final = tuple(sorted(_find_dialects(), key=lambda dialect: (dialect.precedence, dialect.name)))

BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
