"""Reading vLLM's configuration, and the settings that are changed in it."""

from types import SimpleNamespace
from typing import Any

import pytest
from playhead_inference import config
from playhead_inference.config import guard_platform, server_refusals


def platform(device: str) -> type[Any]:
    """A platform that, like vLLM's for CPUs, uses another process for the worker."""

    def check_and_update_config(vllm_config: Any) -> None:
        vllm_config.parallel_config.distributed_executor_backend = "mp"

    return type("P", (), {"device_type": device, "check_and_update_config": staticmethod(check_and_update_config)})


def check_config(device: str, executor: str | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(config, "read_facts", lambda *_: None)
    monkeypatch.setattr(config, "refusals", lambda _: ())
    found = platform(device)
    guard_platform(found)
    parallel = SimpleNamespace(distributed_executor_backend=executor, worker_extension_cls="")
    found.check_and_update_config(SimpleNamespace(model_config=object(), parallel_config=parallel))
    return parallel


@pytest.mark.parametrize(
    ("device", "asked", "taken"), [("cpu", "uni", "uni"), ("cpu", "mp", "mp"), ("cuda", "uni", "mp")]
)
def test_a_cpu_s_worker_gets_no_process_of_its_own(
    device: str, asked: str, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parallel = check_config(device, asked, monkeypatch)
    assert parallel.distributed_executor_backend == taken
    assert parallel.worker_extension_cls == config.EXTENSION


def test_middleware_is_refused_by_its_name() -> None:
    assert server_refusals(None) == server_refusals(SimpleNamespace(middleware=[])) == []
    assert "middleware my.module (--middleware) was not tested" in server_refusals(
        SimpleNamespace(middleware=["my.module"])
    )


def test_another_plugin_is_seen_where_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"vllm.general_plugins": ["playhead_inference", "other", "unnamed"]}
    monkeypatch.setattr(
        config, "entry_points", lambda group: [SimpleNamespace(name=name) for name in points.get(group, [])]
    )
    monkeypatch.setenv("VLLM_PLUGINS", "other,playhead_inference,not-installed")
    assert config._other_plugins() == ["other"]
