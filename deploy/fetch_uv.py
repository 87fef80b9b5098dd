"""Fetch uv's wheel from PyPI with nothing but the standard library, check its digest, and unpack the one binary in it.

The last resort of bootstrap.sh, for a Python without venv and pip. Usage: fetch_uv.py VERSION DESTINATION
"""

import hashlib
import io
import json
import os
import platform
import sys
import urllib.request
import zipfile


def wanted(filename):
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
    if sys.platform == "darwin":
        return "macosx" in filename and {"aarch64": "arm64"}.get(machine, machine) in filename
    libc = "musllinux" if not platform.libc_ver()[0] else "manylinux"
    return libc in filename and machine in filename


def main(version, destination):
    with urllib.request.urlopen("https://pypi.org/pypi/uv/%s/json" % version) as answer:
        files = json.load(answer)["urls"]
    wheel = next(f for f in files if f["packagetype"] == "bdist_wheel" and wanted(f["filename"]))
    with urllib.request.urlopen(wheel["url"]) as answer:
        data = answer.read()
    if hashlib.sha256(data).hexdigest() != wheel["digests"]["sha256"]:
        sys.exit("the wheel's digest is wrong: %s" % wheel["url"])
    archive = zipfile.ZipFile(io.BytesIO(data))
    binary = next(name for name in archive.namelist() if name.endswith("/scripts/uv"))
    os.makedirs(os.path.dirname(destination), exist_ok=True)
    with open(destination + ".part", "wb") as file:
        file.write(archive.read(binary))
    os.chmod(destination + ".part", 0o755)
    os.rename(destination + ".part", destination)


if __name__ == "__main__":
    main(*sys.argv[1:])
