"""A client like an agent's: `python -m bench.asker`, told one JSON line on stdin what to ask, says on stdout what it took.

`requests`, one session, each body once and in order. With a cassette it asks through VCR.py, in this process.
"""

import json
import resource
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import requests

from bench.figures import quantile
from bench.words import Bodies


def ask(options: Mapping[str, Any]) -> dict[str, Any]:
    """Ask for every call, or each so many-th of them, and check that each has an answer."""
    bodies = Bodies(options["size"], seed=1)
    session = requests.Session()
    session.trust_env = False
    session.verify = options["ca"]
    if proxy := options.get("proxy"):
        session.proxies = {"http": proxy, "https": proxy}
    times: list[float] = []
    with ExitStack() as stack:
        began = time.perf_counter()
        if cassette := options.get("cassette"):
            _enter(stack, cassette, options["mode"])
        loaded = time.perf_counter()
        used = _cpu()
        for number in range(0, options["calls"], options.get("every", 1)):
            before = time.perf_counter()
            answer = session.post(
                options["url"],
                data=bodies[number],
                headers={
                    "Content-Type": "application/json",
                    "Accept-Encoding": "identity",
                    "Authorization": "Bearer none",
                },
            )
            times.append(time.perf_counter() - before)
            if answer.status_code != 200:
                raise SystemExit(f"call {number} was answered with {answer.status_code}: {answer.text[:300]}")
        used, ended_at = _cpu() - used, time.perf_counter()
    ordered = sorted(times)
    return {
        "load_ms": (loaded - began) * 1e3,
        "seconds": ended_at - loaded,
        "cpu": used,
        "p50_ms": quantile(ordered, 0.5) * 1e3,
        "p99_ms": quantile(ordered, 0.99) * 1e3,
        "rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def _enter(stack: ExitStack, cassette: str, mode: str) -> None:
    # Only where it is measured: it patches what it finds.
    import vcr

    matched = ("method", "scheme", "host", "port", "path", "query", "body")
    stack.enter_context(vcr.use_cassette(cassette, record_mode=mode, match_on=matched))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask(json.loads(sys.stdin.read()))))
