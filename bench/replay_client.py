"""The HTTP client of `bench.replay_peers`, a process of its own.

`python -m bench.replay_client` reads its options as one line of JSON from stdin, sends each request once and in order
over one `requests` session, and writes the measured times and CPU to stdout as JSON. With the option `cassette`, VCR.py
answers the requests in this process.
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
from bench.sample_bodies import Bodies


def ask(options: Mapping[str, Any]) -> dict[str, Any]:
    """Send every request, or every `every`-th one, and return the times; exit with an error if one is not answered with
    200.
    """
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
            _enter_cassette(stack, cassette, options["mode"])
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


def _enter_cassette(stack: ExitStack, cassette: str, mode: str) -> None:
    # Only where it is measured: it patches what it finds.
    """Install VCR.py with a cassette until the stack is closed."""
    import vcr

    matched = ("method", "scheme", "host", "port", "path", "query", "body")
    stack.enter_context(vcr.use_cassette(cassette, record_mode=mode, match_on=matched))


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.stdout.write(json.dumps(ask(json.loads(sys.stdin.read()))))
