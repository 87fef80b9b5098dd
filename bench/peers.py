"""Start other tools in front of the benchmark's upstream: nginx, mitmdump, Hoverfly and timefork.

All are optional: one that is not installed raises `Absent`, and the results say so. nginx can be used without
installing it:

    apt-get download nginx && dpkg -x nginx_*.deb nginx    # then --nginx nginx/usr/sbin/nginx
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.bench_setup import BenchSetup, Worker
from bench.wire import MeasurementFailed

NGINX: Final = """
daemon off; master_process off; pid {directory}/nginx.pid; error_log {directory}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off; keepalive_requests 100000000; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
  upstream api {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} ssl http2; ssl_certificate {certificate}; ssl_certificate_key {certificate};
    location / {{
      proxy_pass https://api; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_ssl_verify on; proxy_ssl_trusted_certificate {ca}; proxy_ssl_name localhost; proxy_ssl_session_reuse on;
      proxy_buffering off; client_max_body_size 0; client_body_buffer_size 64k;
    }}
  }}
}}
"""

TIMEFORK: Final = "timefork==0.3.3"

START_WITHIN: Final = 60.0


class Absent(MeasurementFailed):
    """A program is not on this machine and cannot be installed."""


@contextmanager
def nginx(setup: BenchSetup, binary: str) -> Iterator[Worker]:
    """Start nginx as a reverse proxy with TLS on both sides that records nothing, as one process."""
    directory = setup.directory / "nginx"
    directory.mkdir()
    port, config = free(), directory / "nginx.conf"
    values = {"upstream": setup.port, "port": port, "certificate": setup.certificate, "ca": setup.ca}
    config.write_text(NGINX.format(directory=directory, **values))
    with server([find_program(binary), "-c", str(config), "-p", str(directory)], port) as pid:
        yield Worker(name="nginx", ca=setup.ca, pid=pid, client_options={"upstream": port})


@contextmanager
def mitmdump(setup: BenchSetup, *more: str, name: str = "mitmdump") -> Iterator[Worker]:
    """Start mitmdump with further options. It connects to the host and port that CONNECT names."""
    port, directory = free(), setup.directory
    line = [
        find_program(str(Path(sys.executable).parent / "mitmdump")),
        "-q",
        "--listen-host",
        "127.0.0.1",
        "-p",
        str(port),
    ]
    line += ["--set", f"confdir={directory}", "--set", "connection_strategy=lazy"]
    line += ["--set", f"ssl_verify_upstream_trusted_ca={setup.ca}", *more]
    with server(line, port) as pid:
        ca = str(directory / "mitmproxy-ca-cert.pem")
        yield Worker(name=name, ca=ca, port=port, pid=pid, client_options={"authority": f"localhost:{setup.port}"})


@contextmanager
def hoverfly(setup: BenchSetup) -> Iterator[Worker]:
    """Start Hoverfly in capture mode. Its own CA is built in; the client does not verify it, which does not affect the
    figures.
    """
    port = free()
    line = [find_program("hoverfly"), "-capture", "-pp", str(port), "-ap", str(free()), "-tls-verification=false"]
    with server(line, port) as pid:
        client_options = {"authority": f"localhost:{setup.port}", "verified": False}
        yield Worker(name="hoverfly", ca=setup.ca, port=port, pid=pid, client_options=client_options)


@contextmanager
def timefork(setup: BenchSetup) -> Iterator[Worker]:
    """Start timefork as a base URL. It accepts clients over plain HTTP only, and uses TLS to the upstream."""
    directory, port = setup.directory / "timefork", free()
    directory.mkdir()
    env = dict(os.environ) | {"TIMEFORK_UPSTREAM_OPENAI": f"https://localhost:{setup.port}", "SSL_CERT_FILE": setup.ca}
    with server([str(_timefork()), "up", "-p", str(port)], port, cwd=directory, env=env) as pid:
        client_options = {"upstream": port, "plain": True, "path": "/v1/chat/completions"}
        yield Worker(name="timefork", ca=setup.ca, pid=pid, client_options=client_options)


def _timefork() -> Path:
    """Return timefork's program, in a virtual environment that is created once and kept."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    place = caches / "playhead-bench" / TIMEFORK
    program = place / "bin" / "timefork"
    if not program.exists():
        uv = shutil.which("uv")
        make = [uv, "venv", "-q", "--python", sys.executable] if uv else [sys.executable, "-m", "venv"]
        install = [uv, "pip", "install", "-q", "-p"] if uv else []
        python = str(place / "bin" / "python")
        install = [*install, python] if uv else [python, "-m", "pip", "install", "-q"]
        for line in ([*make, str(place)], [*install, TIMEFORK]):
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            if done.returncode:
                shutil.rmtree(place, ignore_errors=True)
                raise Absent(f"{TIMEFORK} could not be installed from PyPI: {done.stderr.strip()[-200:]}")
    return program


def find_program(program: str) -> str:
    """Return the path of a program. Raises Absent."""
    path = shutil.which(program)
    if path is None:
        raise Absent(f"{Path(program).name} is not on the PATH")
    return path


@contextmanager
def server(
    line: Sequence[str], port: int, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[int]:
    """Start a program and wait until it answers on a port; yield its process id."""
    began = time.perf_counter()
    process = subprocess.Popen(line, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _answers(port):
            if process.poll() is not None or time.perf_counter() - began > START_WITHIN:
                raise MeasurementFailed(f"{Path(line[0]).name} did not begin to answer")
            time.sleep(0.005)
        yield process.pid
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    """Whether it answers a request: some programs listen before they are ready."""
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as connection:
            connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
            return bool(connection.recv(1))
    except OSError:
        return False


def free() -> int:
    """Return a port on which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
