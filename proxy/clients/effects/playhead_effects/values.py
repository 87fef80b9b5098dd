"""Results as JSON and back: integers up to 2^53, text, lists, booleans and null; the others in objects with one member."""

import base64
import json

MOST_INTEGER = 1 << 53


class Unwritable(Exception):
    """A value that cannot be recorded."""


def encode(value):
    """Return a value as JSON."""
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind is int:
        return value if -MOST_INTEGER <= value <= MOST_INTEGER else {"$int": str(value)}
    if kind is float:
        return {"$float": repr(value)}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return {"$text": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
        return str(value)
    if kind in (list, tuple):
        return [encode(one) for one in value]
    raise Unwritable(repr(kind))


def decode(value):
    """Return the value that was encoded."""
    if isinstance(value, list):
        return [decode(one) for one in value]
    if not isinstance(value, dict):
        return value
    ((name, text),) = value.items()
    if name == "$int":
        return int(text)
    if name == "$float":
        return float(text)
    if name == "$text":
        return base64.b64decode(text).decode("utf-8", "surrogatepass")
    return base64.b64decode(text)


def encode_error(error):
    """Return an exception as JSON."""
    file = getattr(error, "filename", None)
    arguments = [_encode_or_describe(one) for one in error.args]
    return {
        "type": type(error).__name__,
        "args": arguments,
        "file": None if file is None else _encode_or_describe(file),
    }


def _encode_or_describe(value):
    try:
        return encode(value)
    except Unwritable:
        return repr(value)


def decode_error(error_fields):
    """Return the exception that was encoded; a RuntimeError in place of one that is not built in."""
    import builtins

    kind = getattr(builtins, error_fields["type"], None)
    arguments = decode(error_fields.get("args", []))
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return RuntimeError("{}: {}".format(error_fields["type"], arguments))
    error = kind(*arguments)
    if error_fields.get("file") is not None:
        error.filename = decode(error_fields["file"])
    return error


def key_of(args):
    """Return a text that is equal for equal arguments."""
    return json.dumps(args, sort_keys=True) if args else ""
