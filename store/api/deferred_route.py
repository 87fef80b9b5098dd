"""A route of FastAPI that is built by the first request for it: to build all of them takes a quarter of a store server's start."""

from collections.abc import Callable
from threading import RLock
from typing import Any, Self

from fastapi import params
from fastapi.routing import APIRoute
from starlette.routing import compile_path, get_name

_building = RLock()
"""Held while a route is built: the document of the API is made in a thread beside the requests."""


class DeferredRoute(APIRoute):
    """A route that knows what a request is matched with, and builds the rest when any of it is first read."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._options = options
        self._is_begun = False
        self._prefixed: dict[tuple[Any, ...], Self] = {}
        self.path = path
        self.endpoint = endpoint
        self.name = options.get("name") or get_name(endpoint)
        self.methods = {method.upper() for method in options.get("methods") or ("GET",)}
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)

    def __getattr__(self, name: str) -> Any:
        # Python calls this for attributes that are missing, which are those that building sets.
        with _building:
            if not self.__dict__.get("_is_begun", True):
                self._is_begun = True
                super().__init__(self.path, self.endpoint, **self._options)
            try:
                return self.__dict__[name]
            except KeyError:
                raise AttributeError(name) from None

    def with_prefix(self, prefix: str, dependencies: list[params.Depends]) -> Self:
        """Return the same route below a prefix, with further dependencies, which come first.

        It is the same object each time: apps of one process share what is built.
        """
        key = (prefix, *dependencies)
        if key not in self._prefixed:
            options = {**self._options, "dependencies": [*dependencies, *(self._options.get("dependencies") or ())]}
            self._prefixed[key] = type(self)(prefix + self.path, self.endpoint, **options)
        return self._prefixed[key]
