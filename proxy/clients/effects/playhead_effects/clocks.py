"""The time: `time` and `datetime`, asked for by the program itself. Pools, retries and timeouts of packages go by the real time."""

import sys
import time

from playhead_effects.callers import PROGRAM, classes, classify

_getframe = sys._getframe


def install(effects):
    """Replace the clocks."""
    real_ns = {"time": time.time_ns, "monotonic": time.monotonic_ns, "perf_counter": time.perf_counter_ns}
    for name, read_ns in real_ns.items():
        setattr(time, name, _seconds("time." + name, getattr(time, name), read_ns, effects.clock))
        setattr(time, name + "_ns", _nanoseconds("time." + name, read_ns, effects.clock))
    _replace_sleep(effects)
    _replace_calendar(effects)
    _replace_datetime(effects)


def _seconds(kind, real, read_ns, clock):
    known = classes

    def now():
        frame = _getframe(1)
        file = frame.f_code.co_filename
        if (known[file] if file in known else classify(file)) != PROGRAM:
            return real()
        return clock(kind, frame, read_ns()) / 1e9

    now.__name__ = real.__name__
    return now


def _nanoseconds(kind, read_ns, clock):
    known = classes

    def now_ns():
        frame = _getframe(1)
        file = frame.f_code.co_filename
        if (known[file] if file in known else classify(file)) != PROGRAM:
            return read_ns()
        return clock(kind, frame, read_ns())

    now_ns.__name__ = read_ns.__name__
    return now_ns


def _is_program(frame):
    file = frame.f_code.co_filename
    return (classes[file] if file in classes else classify(file)) == PROGRAM


def _replace_sleep(effects):
    real = time.sleep

    def sleep(seconds, /):
        if effects.is_replay and _is_program(_getframe(1)):
            # Nothing that is recorded depends on it: the clocks are.
            return real(0 if seconds >= 0 else seconds)
        return real(seconds)

    time.sleep = sleep


def _replace_calendar(effects):
    """Functions that read the clock if they are given no time."""

    def now(frame):
        return effects.clock("time.time", frame, _REAL_NS()) / 1e9

    for name in ("gmtime", "localtime", "ctime"):
        setattr(time, name, _with_time(getattr(time, name), now))
    strftime, localtime = time.strftime, time.localtime

    def format_time(form, *when):
        frame = _getframe(1)
        if when or not _is_program(frame):
            return strftime(form, *when)
        return strftime(form, localtime(now(frame)))

    time.strftime = format_time


_REAL_NS = time.time_ns


def _with_time(real, now):
    def convert(seconds=None, /):
        frame = _getframe(1)
        if seconds is None and _is_program(frame):
            seconds = now(frame)
        return real(seconds)

    convert.__name__ = real.__name__
    return convert


def _replace_datetime(effects):
    """Replace methods of a type of C in place, so that its name, instances and subclasses stay what they are."""
    import datetime

    cls, members = datetime.datetime, datetime_members()
    if members is None:
        return
    real_now, real_utcnow = cls.now, cls.utcnow
    epoch = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - what utcnow returns has no time zone
    microsecond = datetime.timedelta(microseconds=1)

    def moment(frame):
        return effects.clock("datetime.now", frame, _REAL_NS())

    def now(cls, tz=None):
        frame = _getframe(1)
        if not _is_program(frame):
            return real_now.__func__(cls, tz) if hasattr(real_now, "__func__") else _call(real_now, cls, tz)
        seconds, ns = divmod(moment(frame), 1_000_000_000)
        return cls.fromtimestamp(seconds, tz).replace(microsecond=ns // 1000)

    def utcnow(cls):
        frame = _getframe(1)
        if not _is_program(frame):
            return _call(real_utcnow, cls)
        seconds, ns = divmod(moment(frame), 1_000_000_000)
        whole = epoch + datetime.timedelta(seconds=seconds) + ns // 1000 * microsecond
        return whole if cls is datetime.datetime else cls.fromisoformat(whole.isoformat())

    raw_now, raw_utcnow = members["now"], members["utcnow"]

    def _call(real, cls, *args):
        raw = raw_now if real is real_now else raw_utcnow
        return raw.__get__(None, cls)(*args)

    members["now"], members["utcnow"] = classmethod(now), classmethod(utcnow)
    forget_cached_members()


def datetime_members():
    """Return the members of the type, to change them; None where that is not possible."""
    import datetime
    import gc

    return next((one for one in gc.get_referents(datetime.datetime.__dict__) if isinstance(one, dict)), None)


def forget_cached_members():
    """Have the interpreter look up the members of the type anew, after a change."""
    import ctypes
    import datetime

    ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime.datetime))
