import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import Failure
from proxy.trust.ca import CertificateAuthority, ensure_ca
from proxy.wire.access import Access
from proxy.wire.config import EngineConfig, Origin, is_loopback
from proxy.worker.process_limits import raise_file_limit


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return ensure_ca(tmp_path_factory.mktemp("keys") / "keys")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "example.com", "2001:db8::1"])
def test_a_worker_beyond_loopback_wants_a_token(authority: CertificateAuthority, host: str) -> None:
    with pytest.raises(Failure, match="without a token: set PLAYHEAD_TOKEN"):
        EngineConfig(authority=authority, host=host)
    EngineConfig(authority=authority, host=host, access=Access(tokens=("secret",)))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_a_worker_on_loopback_wants_none(authority: CertificateAuthority, host: str) -> None:
    EngineConfig(authority=authority, host=host)


@pytest.mark.parametrize(
    "text", ["ftp://x", "https://", "example.com", "http://x:port", "http://x/path", "http://x:99999"]
)
def test_what_is_no_origin_is_named(authority: CertificateAuthority, text: str) -> None:
    with pytest.raises(Failure, match="invalid origin"):
        EngineConfig(authority=authority, upstreams={"api.test": text})
    with pytest.raises(Failure, match="invalid origin"):
        EngineConfig(authority=authority, reverse=text)


@given(
    scheme=st.sampled_from(["http", "https"]),
    host=st.sampled_from(["api.test", "127.0.0.1", "::1"]),
    port=st.integers(1, 65535),
)
def test_an_origin_is_what_it_is_written_as(scheme: str, host: str, port: int) -> None:
    origin = Origin(scheme, host, port)
    assert Origin.parse(str(origin)) == origin


def test_an_origin_leaves_out_the_port_that_its_scheme_implies() -> None:
    assert Origin("https", "api.test", 443).authority == "api.test"
    assert Origin("http", "api.test", 443).authority == "api.test:443"
    assert Origin("http", "::1", 80).authority == "[::1]"


def test_only_this_machine_s_addresses_are_loopback() -> None:
    assert not is_loopback("192.168.0.1")


def test_the_settings_of_a_worker_are_plain(authority: CertificateAuthority, tmp_path: Path) -> None:
    config = EngineConfig(authority=authority, upstream_ca=str(tmp_path / "none.pem"))
    assert config.mode == "record"


@pytest.mark.parametrize(
    "module",
    ["proxy.worker.process", "proxy.cli.fixtures", "proxy.cli.record", "proxy.cli.replay", "proxy.cli.compare"],
)
def test_a_worker_or_command_brings_no_database_along(module: str) -> None:
    """Importing it would add a second to every start."""
    code = f"import sys, {module}; print([name for name in ('sqlalchemy', 'asyncpg', 'alembic', 'fastapi', 'mitmproxy') if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("module", ["proxy.worker.process", "proxy.processes.store_server"])
def test_a_crash_leaves_no_core_file(module: str) -> None:
    """The memory of a worker has keys and bodies that are never written to a disk."""
    code = (
        "import resource, runpy, sys, types; resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))\n"
        "class Line:\n"
        "    def readline(self): print(resource.getrlimit(resource.RLIMIT_CORE)); sys.stdout.flush(); sys.exit(3)\n"
        "sys.stdin = types.SimpleNamespace(buffer=Line())\n"
        f"runpy.run_module('{module}', run_name='__main__')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout.strip()) == (3, str((0, 1 << 20))), ran.stderr


def test_a_worker_takes_all_the_files_that_it_may_have() -> None:
    before = soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 256), hard))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
