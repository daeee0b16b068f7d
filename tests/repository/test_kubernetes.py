"""The manifests and the chart in examples/deployment: pods drain, probes ask for routes that exist, schemas agree.

The chart is rendered if `helm-python-sdk` is installed, and schemas of Kubernetes are compared if
`kubernetes-validate` is: neither is needed to work on Quire.
"""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from quire.commands.command_line import parse
from quire.server.admin import routes_health
from quire.settings.server_config import ServerConfig

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "deployment"
CHART = FOLDER / "helm"
ROUTES = {route.path for route in routes_health.router.routes}
VERSIONS = ("1.30", "1.37")
Manifests = list[dict[str, Any]]

SCALED = {
    "apiKeySecret": "quire",
    "models": [
        {"name": "a b", "model": "/models/a", "args": ["--max-model-len", "8k"], "autoscaling": {"enabled": True}},
        {"name": "b", "model": "org/b", "replicas": 2, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
    ],
}


def plain() -> Manifests:
    return [*yaml.safe_load_all((FOLDER / "kubernetes" / "quire.yaml").read_text())]


def rendered(values: dict[str, Any]) -> Manifests:
    helm = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed")
    texts = helm.Chart.load(str(CHART)).render(values, name="quire").values()
    return [found for text in texts for found in yaml.safe_load_all(text) if found]


@pytest.fixture(params=["plain", "default values", "several models"])
def manifests(request: pytest.FixtureRequest) -> Manifests:
    return plain() if request.param == "plain" else rendered(SCALED if "several" in request.param else {})


def deployments(manifests: Manifests) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The spec of each deployment's pods, and their container."""
    for found in manifests:
        if found["kind"] == "Deployment":
            pod = found["spec"]["template"]["spec"]
            yield pod, pod["containers"][0]


def test_the_arguments_of_each_container_are_those_of_serve(manifests: Manifests) -> None:
    for _, container in deployments(manifests):
        assert parse(["serve", *container["args"]]).models_given == [container["args"][0]]


def test_each_pod_is_ready_when_its_own_model_is(manifests: Manifests) -> None:
    for _, container in deployments(manifests):
        name = container["args"][0].partition("=")[0]
        url = urlsplit(container["readinessProbe"]["httpGet"]["path"])
        assert (url.path, url.query) == ("/health/ready", f"model={name}".replace(" ", "+"))
        assert {container[probe]["httpGet"]["path"] for probe in ("livenessProbe", "startupProbe")} == {"/health/live"}
        assert {"/health/ready", "/health/live"} <= ROUTES


def test_requests_that_run_get_their_time_when_a_pod_ends(manifests: Manifests) -> None:
    for pod, container in deployments(manifests):
        args = container["args"]
        drain = int(args[args.index("--shutdown-timeout-s") + 1])
        assert drain == ServerConfig().shutdown_timeout_s
        assert (
            pod["terminationGracePeriodSeconds"] >= container["lifecycle"]["preStop"]["sleep"]["seconds"] + drain + 10
        )


def test_services_disruption_budgets_and_scalers_name_pods_that_exist(manifests: Manifests) -> None:
    pods = [found["spec"]["template"]["metadata"]["labels"] for found in manifests if found["kind"] == "Deployment"]
    names = {found["metadata"]["name"] for found in manifests if found["kind"] == "Deployment"}
    of = {kind: [found["spec"] for found in manifests if found["kind"] == kind] for kind in KINDS}
    assert [spec["selector"] for spec in of["Service"]] == pods
    assert [spec["selector"]["matchLabels"] for spec in of["PodDisruptionBudget"]] == pods
    for spec in of["HorizontalPodAutoscaler"]:
        assert spec["scaleTargetRef"]["name"] in names
    assert len(names) == len(pods) >= 1


KINDS = ("Service", "PodDisruptionBudget", "HorizontalPodAutoscaler", "Deployment")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_manifests_have_the_schema_of_kubernetes(manifests: Manifests, version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    assert {found["kind"] for found in manifests} <= set(KINDS)
    for found in manifests:
        validator.validate(found, version, strict=True)


def test_the_plain_manifests_are_what_the_chart_makes_of_its_values() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    values["models"][0]["autoscaling"]["enabled"] = True
    made = {found["kind"]: found for found in rendered(values)}
    for found in plain():
        assert spec_of(found) == spec_of(made[found["kind"]])


def spec_of(manifest: dict[str, Any]) -> Any:
    """The spec, without what differs: the optional secret and the policy for pulling."""
    pod = manifest["spec"].get("template", {}).get("spec")
    if pod:
        pod["containers"][0].pop("imagePullPolicy", None)
        pod["containers"][0]["env"] = pod["containers"][0]["env"][:1]
    return manifest["spec"]


def test_the_ray_service_asks_for_an_application_that_exists() -> None:
    service = yaml.safe_load((FOLDER / "kubernetes" / "rayservice.yaml").read_text())
    (application,) = yaml.safe_load(service["spec"]["serveConfigV2"])["applications"]
    module, _, name = application["import_path"].partition(":")
    assert callable(getattr(importlib.import_module(module), name))


def test_the_commands_of_the_cluster_example_start_a_head_and_a_worker() -> None:
    scripts = [(FOLDER.parent / "cluster" / name).read_text().splitlines()[-1] for name in ("head.sh", "worker.sh")]
    head, worker = (shlex.split(script) for script in scripts)
    assert head[:3] == worker[:3] == ["exec", "ray", "start"]
    port = next(word.partition("=")[2] for word in head if word.startswith("--port="))
    assert "--head" in head
    assert f"--address=$1:{port}" in worker
