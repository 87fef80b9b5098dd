"""Random numbers, uuids and seeds: also those of installed packages, because what they draw goes into requests."""

import os
import random
import sys

from playhead_effects.callers import IGNORED, LIBRARY, outside
from playhead_effects.values import decode

_getframe = sys._getframe
_INSIDE = frozenset(("random", "secrets", "uuid", "tempfile", __name__))


def _caller(frame):
    frame, found = outside(frame, _INSIDE)
    return (None, "") if found == IGNORED else (frame, "library" if found == LIBRARY else "")


def install(effects, patch_late):
    """Replace the sources of randomness."""
    _replace_module_functions(effects)
    _replace_unseeded(effects)
    _replace_system_source(effects)
    patch_late("uuid", lambda module: _replace_in_uuid(module, effects))
    patch_late("secrets", lambda module: _replace_in_secrets(module, effects))
    patch_late("numpy.random", lambda module: seed(effects, "numpy.seed", module.seed))
    patch_late("torch", lambda module: seed(effects, "torch.seed", module.manual_seed))


def seed(effects, kind, set_seed):
    """Give a generator a seed that is observed."""
    number = effects.value(kind, _getframe(0), lambda: int.from_bytes(_REAL_URANDOM(4), "big"))
    set_seed(number)


_REAL_URANDOM = os.urandom


def _replace_module_functions(effects):
    """The functions of the module draw from an instance that is like the one before, and whose draws are observed."""
    old = random._inst
    real_random, real_bits = random.Random.random, random.Random.getrandbits

    class Random(random.Random):
        def random(self):
            frame, by = _caller(_getframe(1))
            if frame is None:
                return real_random(self)
            return effects.value("random.random", frame, lambda: real_random(self), by=by, from_json=decode)

        def getrandbits(self, k, /):
            frame, by = _caller(_getframe(1))
            if frame is None:
                return real_bits(self, k)
            return effects.value(
                "random.getrandbits", frame, lambda: real_bits(self, k), {"k": k} if isinstance(k, int) else None, by
            )

    new = Random()
    new.setstate(old.getstate())
    random._inst = new
    for name, function in list(vars(random).items()):
        if getattr(function, "__self__", None) is old:
            setattr(random, name, getattr(new, name))


def _replace_unseeded(effects):
    """An instance that is created or seeded without a seed gets one that is observed."""
    real = random.Random

    class Random(real):
        def __init__(self, x=None):
            super().__init__(x)

        def seed(self, a=None, version=2):
            if a is None:
                frame, by = _caller(_getframe(1))
                if frame is not None and type(self).seed is Random.seed:
                    a = effects.value(
                        "random_source.seed", frame, lambda: int.from_bytes(_REAL_URANDOM(32), "big"), by=by
                    )
            super().seed(a, version)

    Random.__module__, Random.__qualname__, Random.__doc__ = real.__module__, real.__qualname__, real.__doc__
    random.Random = Random


def _replace_system_source(effects):
    real_urandom = os.urandom
    source = random.SystemRandom
    real_random, real_bits = source.random, source.getrandbits

    def urandom(size, /):
        frame, by = _caller(_getframe(1))
        if frame is None:
            return real_urandom(size)
        return effects.value("os.urandom", frame, lambda: real_urandom(size), {"size": size}, by)

    def system_random(self):
        frame, by = _caller(_getframe(1))
        return (
            real_random(self)
            if frame is None
            else effects.value("random_source.random", frame, lambda: real_random(self), by=by)
        )

    def system_bits(self, k):
        frame, by = _caller(_getframe(1))
        if frame is None:
            return real_bits(self, k)
        return effects.value("random_source.getrandbits", frame, lambda: real_bits(self, k), {"k": k}, by)

    os.urandom = urandom
    source.random, source.getrandbits = system_random, system_bits
    source.randbytes = lambda _self, n: os.urandom(n)


def _replace_in_secrets(module, effects):
    def token_bytes(nbytes=None):
        size = module.DEFAULT_ENTROPY if nbytes is None else nbytes
        frame, by = _caller(_getframe(1))
        if frame is None:
            return _REAL_URANDOM(size)
        return effects.value("secrets.token_bytes", frame, lambda: _REAL_URANDOM(size), {"size": size}, by)

    module.token_bytes = token_bytes


def _replace_in_uuid(module, effects):
    for name in ("uuid1", "uuid4", "uuid6", "uuid7", "uuid8"):
        if (real := getattr(module, name, None)) is not None:
            setattr(module, name, _observed_uuid(module.UUID, "uuid." + name, real, effects))


def _observed_uuid(kind_of_result, kind, real, effects):
    def make(*args, **options):
        frame, by = _caller(_getframe(1))
        if frame is None:
            return real(*args, **options)
        return effects.value(
            kind,
            frame,
            lambda: real(*args, **options),
            None,
            by,
            lambda found: str(found),
            lambda value: kind_of_result(value),
        )

    make.__name__ = make.__qualname__ = real.__name__
    return make
