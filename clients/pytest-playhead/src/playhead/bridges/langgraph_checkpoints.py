"""Record what the checkpointers of LangGraph save and load: of each checkpoint its thread, its step and the state of the graph."""

from __future__ import annotations

from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from playhead.bridges.steps import StepReporter

_is_inside: Final = ContextVar("playhead_checkpoint", default=False)
"""Whether a method of a checkpointer is at work: many call others of their own."""

_METHODS: Final = ("put", "aput", "get_tuple", "aget_tuple")


def record_checkpoints(reporter: StepReporter) -> None:
    """Record those of all classes of checkpointers, also of those that are defined later. Nothing happens without langgraph."""
    try:
        from langgraph.checkpoint.base import BaseCheckpointSaver
    except ImportError:
        return

    def init_subclass(cls: type, /, **options: Any) -> None:
        super(BaseCheckpointSaver, cls).__init_subclass__(**options)
        _wrap_methods(cls, reporter)

    BaseCheckpointSaver.__init_subclass__ = classmethod(init_subclass)
    for cls in _subclasses(BaseCheckpointSaver):
        _wrap_methods(cls, reporter)


def _subclasses(cls: type) -> Iterator[type]:
    one: type
    for one in cls.__subclasses__():
        yield one
        yield from _subclasses(one)


def _wrap_methods(cls: type, reporter: StepReporter) -> None:
    for name in _METHODS:
        if method := vars(cls).get(name):
            wrap = _wrap_async_method if name.startswith("a") else _wrap_method
            setattr(cls, name, wrap(method, reporter))


def _wrap_method(method: Callable[..., Any], reporter: StepReporter) -> Callable[..., Any]:
    """Return the method with a report of what it saved or loaded."""

    @wraps(method)
    def call(saver: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        if _is_inside.get():
            return method(saver, config, *arguments, **options)
        token = _is_inside.set(True)
        try:
            found = method(saver, config, *arguments, **options)
        finally:
            _is_inside.reset(token)
        _report(reporter, config, arguments, options, found)
        return found

    return call


def _wrap_async_method(method: Callable[..., Any], reporter: StepReporter) -> Callable[..., Any]:
    """The same of a coroutine function."""

    @wraps(method)
    async def call(saver: Any, config: Any, *arguments: Any, **options: Any) -> Any:
        if _is_inside.get():
            return await method(saver, config, *arguments, **options)
        token = _is_inside.set(True)
        try:
            found = await method(saver, config, *arguments, **options)
        finally:
            _is_inside.reset(token)
        _report(reporter, config, arguments, options, found)
        return found

    return call


def _report(
    reporter: StepReporter, config: Any, arguments: tuple[Any, ...], options: Mapping[str, Any], found: Any
) -> None:
    """Report one that was saved, of which these were the arguments, or one that was found.

    Ids of checkpoints are left out: they are made of the time, and two runs would differ in each.
    """
    saved = options.get("checkpoint", arguments[0] if arguments else None)
    metadata = options.get("metadata", arguments[1] if len(arguments) > 1 else None)
    verb = "save" if saved is not None else "load"
    if saved is None and found is not None:
        saved, metadata = found.checkpoint, found.metadata
    configurable = config.get("configurable") or {}
    place = {name: configurable[name] for name in ("thread_id", "checkpoint_ns") if configurable.get(name)}
    facts = {name: metadata[name] for name in ("step", "source") if name in metadata} if metadata else {}
    values = None if saved is None else {name: saved["channel_values"][name] for name in _state_channels(saved)}
    key = object()
    parent = getattr(config.get("callbacks"), "parent_run_id", None)
    reporter.start(key, parent, "checkpoint", verb, {**place, **facts})
    reporter.end(key, values)


def _state_channels(checkpoint: Mapping[str, Any]) -> list[str]:
    """The channels that hold the state; the others are how LangGraph leads from node to node."""
    return [name for name in checkpoint["channel_values"] if not name.startswith(("__", "branch:"))]
