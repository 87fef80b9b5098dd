"""Run each client of a list with PATH and HOME, without a variable of Playhead's, and write its output: `drive.py LIST RESULTS`."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def run(command: list[str]) -> dict[str, object]:
    # A client of Python can be the fork of an interpreter only if it is started with the variables that interpreters read.
    own = ("NODE_EXTRA_CA_CERTS",) if command[0].endswith("node") else ("PYTHONHASHSEED", "PYTHONUNBUFFERED", "LANG")
    names = ("PATH", "HOME", *own)
    bare = {name: os.environ[name] for name in names if name in os.environ}
    try:
        done = subprocess.run(command, env=bare, capture_output=True, timeout=60, stdin=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired as error:
        return {"code": None, "out": "", "error": f"gave up: {(error.stderr or b'').decode('utf-8', 'replace')}"}
    return {"code": done.returncode, "out": done.stdout.decode(), "error": done.stderr.decode("utf-8", "replace")}


if __name__ == "__main__":
    clients = json.loads(Path(sys.argv[1]).read_text())
    with ThreadPoolExecutor(4) as pool:
        results = dict(zip(clients, pool.map(run, clients.values()), strict=True))
    Path(sys.argv[2]).write_text(json.dumps(results))
