"""A route of FastAPI that is built by the first request for it: to build all of them takes a quarter of a store server's start."""

from collections.abc import Callable
from typing import Any, Self

from fastapi import params
from fastapi.routing import APIRoute
from starlette.routing import compile_path, get_name


class DeferredRoute(APIRoute):
    """A route that knows what a request is matched with, and builds the rest when any of it is first read."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._options: dict[str, Any] | None = options
        self.path = path
        self.endpoint = endpoint
        self.name = options.get("name") or get_name(endpoint)
        self.methods = {method.upper() for method in options.get("methods") or ("GET",)}
        self.path_regex, self.path_format, self.param_convertors = compile_path(path)

    def __getattr__(self, name: str) -> Any:
        # Python calls this for attributes that are missing, which are those that building sets.
        options, self.__dict__["_options"] = self.__dict__.get("_options"), None
        if options is None:
            raise AttributeError(name)
        super().__init__(self.path, self.endpoint, **options)
        return getattr(self, name)

    def with_prefix(self, prefix: str, dependencies: list[params.Depends]) -> Self:
        """Return the same route below a prefix, with further dependencies, which come first."""
        assert self._options is not None, "it was built without its prefix"
        own = self._options.get("dependencies") or ()
        return type(self)(prefix + self.path, self.endpoint, **{**self._options, "dependencies": [*dependencies, *own]})
