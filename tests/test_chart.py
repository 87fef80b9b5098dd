"""The chart in deploy/helm, as Helm itself renders it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import setting_descriptions

CHART = Path(__file__).resolve().parent.parent / "deploy" / "helm"
HELM = shutil.which("helm")
INFERENCE = ("inference.enabled=true", "inference.model.persistentVolumeClaim.claimName=weights")

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM or "helm", *words], capture_output=True, text=True, check=False)


def render_chart(*values: str) -> dict[str, Any]:
    """What the chart makes of these values, by kind and name."""
    done = helm("template", "r", str(CHART), *(word for value in values for word in ("--set", value)))
    assert done.returncode == 0, done.stderr
    return {f"{each['kind']} {each['metadata']['name']}": each for each in yaml.safe_load_all(done.stdout) if each}


def environment(container: dict[str, Any]) -> dict[str, str | None]:
    return {each["name"]: each.get("value") for each in container["env"]}


def test_it_is_linted() -> None:
    done = helm(
        "lint", "--strict", str(CHART), "--set", "secret=s", *(word for v in INFERENCE for word in ("--set", v))
    )
    assert done.returncode == 0, done.stdout


def test_workers_and_store_server_share_the_spool_and_no_model_server_is_brought_unasked() -> None:
    found = render_chart("secret=s")
    assert sorted(found) == ["Service r-playhead", "StatefulSet r-playhead"]
    containers = found["StatefulSet r-playhead"]["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in containers] == ["store", "proxy"]
    assert containers[0]["volumeMounts"] == containers[1]["volumeMounts"]
    assert "PLAYHEAD_UPSTREAMS" not in environment(containers[1])
    context = found["StatefulSet r-playhead"]["spec"]["template"]["spec"]["securityContext"]
    assert (context["fsGroup"], context["fsGroupChangePolicy"]) == (10001, "OnRootMismatch")


def test_settings_reach_both_containers_and_all_that_are_named_are_settings() -> None:
    found = render_chart("secret=s", *INFERENCE, "settings.PLAYHEAD_DURABILITY=fsync")
    containers = found["StatefulSet r-playhead"]["spec"]["template"]["spec"]["containers"]
    for container in containers:
        given = environment(container)
        assert given["PLAYHEAD_DURABILITY"] == "fsync"
        assert {name.removeprefix("PLAYHEAD_").lower() for name in given} <= setting_descriptions().keys()
        # Not /readyz: without its database the pod still records, and must stay in the Service.
        if container["name"] == "store":
            assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"


def test_the_model_server_is_one_value_and_gets_what_was_meant_for_the_provider() -> None:
    found = render_chart("secret=s", *INFERENCE)
    server = found["Deployment r-playhead-inference"]["spec"]["template"]["spec"]
    assert server["volumes"][0] == {"name": "model", "persistentVolumeClaim": {"claimName": "weights"}}
    assert environment(server["containers"][0]) == {"OMP_NUM_THREADS": "2", "VLLM_CPU_KVCACHE_SPACE": "1"}
    workers = found["StatefulSet r-playhead"]["spec"]["template"]["spec"]["containers"][1]
    upstreams = environment(workers)["PLAYHEAD_UPSTREAMS"]
    assert json.loads(upstreams or "") == {"api.openai.com": "http://r-playhead-inference:9000"}
    assert "Service r-playhead-inference" in found
    assert "NetworkPolicy r-playhead-inference" in found


@pytest.mark.parametrize(
    ("values", "words"), [((), "set secret"), (("secret=s", "inference.enabled=true"), "set inference.model")]
)
def test_what_is_lacking_is_named(values: tuple[str, ...], words: str) -> None:
    done = helm("template", str(CHART), *(word for value in values for word in ("--set", value)))
    assert done.returncode != 0
    assert words in done.stderr
