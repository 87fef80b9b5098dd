"""What a client costs to make in the environments that Playhead makes: httpx loads all roots once for each proxy that is set.

    python -m bench.client_start

The user CPU of `httpx.Client()` in a process of its own, the median of several: without Playhead, and in each environment.
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from proxy.trust.ca import ensure_ca
from proxy.trust.client_environment import CA_BUNDLE_VARIABLES, PROXY_VARIABLES, captive_environment, proxy_variables

TIMES = 7
MAKE = """
import resource, httpx
httpx.Client().close()
before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
for _ in range(5):
    httpx.Client().close()
print((resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) / 5 * 1000)
"""


class Trust(TypedDict):
    """Files of certificates."""

    ca: Path
    ca_bundle: Path


ADDRESS = "http://run:x@127.0.0.1:9"


def environments(directory: Path) -> dict[str, Mapping[str, str]]:
    """By name, the first without Playhead."""
    authority = ensure_ca(directory)
    variables = {*PROXY_VARIABLES, *CA_BUNDLE_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY"}
    base = {name: value for name, value in os.environ.items() if name.upper() not in variables}
    trust = Trust(ca=authority.certificate, ca_bundle=authority.bundle)
    alone = Trust(ca=authority.certificate, ca_bundle=authority.certificate)
    recording = {**base, **proxy_variables(proxy=ADDRESS, base=base, run="r", **trust)}
    return {
        "without Playhead": base,
        "playhead env, with an SSL_CERT_FILE of the user's own": {**recording, "SSL_CERT_FILE": str(authority.bundle)},
        "playhead env; record --isolation off": recording,
        "record": captive_environment(proxy=ADDRESS, base=base, run="r", api=None, **trust),
        "replay --isolation off": {**base, **proxy_variables(proxy=ADDRESS, base=base, run="r", **alone)},
        "replay": captive_environment(proxy=ADDRESS, base=base, run="r", api=None, **alone),
    }


def milliseconds(environment: Mapping[str, str]) -> float:
    """The user CPU of one client."""
    clients = [
        subprocess.run([sys.executable, "-c", MAKE], env=environment, capture_output=True, check=True)
        for _ in range(TIMES)
    ]
    return statistics.median(float(each.stdout) for each in clients)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as directory:
        found = {name: milliseconds(environment) for name, environment in environments(Path(directory)).items()}
    bare = found["without Playhead"]
    for name, each in found.items():
        print(f"{name:38} {each:7.1f} ms  {each / bare:5.2f} x")


if __name__ == "__main__":
    main()
