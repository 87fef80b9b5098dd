"""A mypy plugin that reports a `msgspec.Struct` passed to a function of `dataclasses`, which raises TypeError.

mypy believes that a Struct is a dataclass. Use `msgspec.structs.replace`, `asdict` and `fields`.
"""

from collections.abc import Callable, Iterator

from mypy.plugin import FunctionContext, Plugin
from mypy.types import CallableType, Instance, Type, TypeType, UnionType, get_proper_type

FUNCTIONS = ("replace", "asdict", "astuple", "fields")


class StructCheck(Plugin):
    """Reports calls of these functions with a Struct or its class."""

    def get_function_hook(self, fullname: str) -> Callable[[FunctionContext], Type] | None:
        module, _, name = fullname.rpartition(".")
        return _check_call if module == "dataclasses" and name in FUNCTIONS else None


def _check_call(context: FunctionContext) -> Type:
    for argument in context.arg_types[0] if context.arg_types else []:
        for one in _instances(argument):
            if any(base.fullname.startswith("msgspec.") and base.name == "Struct" for base in one.type.mro):
                name = one.type.name
                context.api.fail(f"{name} is a msgspec.Struct: use the function of msgspec.structs", context.context)
    return context.default_return_type


def _instances(one: Type) -> Iterator[Instance]:
    match get_proper_type(one):
        case Instance() as found:
            yield found
        case UnionType(items=items):
            for item in items:
                yield from _instances(item)
        case TypeType(item=item):
            yield from _instances(item)
        case CallableType() as made if made.is_type_obj():
            yield from _instances(made.ret_type)


def plugin(_version: str) -> type[Plugin]:
    """Return the plugin, as mypy asks for it."""
    return StructCheck
