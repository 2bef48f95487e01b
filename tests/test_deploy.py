"""The Kubernetes manifests: valid by Kubernetes' own schemas, consistent with each other and with the software."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from connections.server import STOP_SECONDS
from models.database.schema import CHECK_SECONDS
from runtime.settings import Settings
from service.app import UPLOADS_AT_ONCE, create_app
from service.http.metrics import GatewayMetrics
from service.webhooks.addresses import FIRST_FREE_PORT, NEVER, is_allowed
from tools.image import PYTHON
from workers.metrics import WorkerMetrics

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "deploy" / "kubernetes"
PINNED = re.compile(r"[a-z]+:[a-z0-9.-]+@sha256:[0-9a-f]{64}")
VERSIONS = ("1.29", "1.37")  # oldest and newest version with schemas
KEDA = "keda.sh/v1alpha1"  # without a schema
WORKLOADS = {"gateway", "worker", "migrate"}

Resource = dict[str, Any]


def resources() -> list[Resource]:
    """Return all applied resources, in order."""
    (kustomization,) = list(yaml.safe_load_all((FOLDER / "kustomization.yaml").read_text()))
    return [
        resource for name in kustomization["resources"] for resource in yaml.safe_load_all((FOLDER / name).read_text())
    ]


def of_kind(kind: str) -> list[Resource]:
    return [resource for resource in resources() if resource["kind"] == kind]


def templates() -> dict[str, Resource]:
    """Return the pod templates by component."""
    found = [*of_kind("Deployment"), *of_kind("Job")]
    return {r["metadata"]["labels"]["app.kubernetes.io/component"]: r["spec"]["template"] for r in found}


def container(component: str) -> Resource:
    (only,) = templates()[component]["spec"]["containers"]
    return only


def environment(component: str) -> dict[str, Any]:
    """Return the environment of a pod's process, by name."""
    variables = {item["name"]: item for item in container(component).get("env", ())}
    maps = {r["metadata"]["name"]: r["data"] for r in of_kind("ConfigMap")}
    for source in container(component).get("envFrom", ()):
        variables |= maps[source["configMapRef"]["name"]]
    return variables


def selectors(value: Any) -> Iterator[dict[str, str]]:
    """Yield all selectors of pods."""
    if isinstance(value, dict):
        if value.get("kind") == "Service":
            yield value["spec"]["selector"]
        for name in ("podSelector", "selector", "labelSelector"):
            if isinstance(value.get(name), dict) and "matchLabels" in value[name]:
                yield value[name]["matchLabels"]
        for item in value.values():
            yield from selectors(item)
    elif isinstance(value, list):
        for item in value:
            yield from selectors(item)


class TestImages:
    def test_of_other_projects_are_pinned_by_digest(self) -> None:
        compose = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
        lines = (ROOT / "Dockerfile").read_text().splitlines()
        (base,) = (line.split("=", 1)[1] for line in lines if line.startswith("ARG BASE_IMAGE="))
        assert {line.split()[1] for line in lines if line.startswith("FROM ")} == {"${BASE_IMAGE}"}
        for image in (base, *(service["image"] for service in compose if "build" not in service)):
            assert PINNED.fullmatch(image), image

    def test_of_the_manifests_are_our_own(self) -> None:
        assert {container(component)["image"] for component in templates()} == {"sfumato"}

    def test_are_tested_on_the_release_of_the_default_base(self) -> None:
        assert f"ARG BASE_IMAGE=python:{PYTHON}-slim@" in (ROOT / "Dockerfile").read_text()


class TestManifests:
    def test_are_all_applied(self) -> None:
        (kustomization,) = list(yaml.safe_load_all((FOLDER / "kustomization.yaml").read_text()))
        assert {*kustomization["resources"], "kustomization.yaml"} == {path.name for path in FOLDER.glob("*.yaml")}

    @pytest.mark.parametrize("version", VERSIONS)
    def test_are_valid(self, version: str) -> None:
        known = [resource for resource in resources() if resource["apiVersion"] != KEDA]
        assert len(known) >= 10
        for resource in known:
            kubernetes_validate.validate(resource, version, strict=True)

    def test_wrong_manifests_are_refused(self) -> None:
        (deployment, *_) = of_kind("Deployment")
        deployment["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(deployment, VERSIONS[0], strict=True)

    def test_select_existing_pods(self) -> None:
        labels = [template["metadata"]["labels"] for template in templates().values()]
        found = list(selectors(resources()))
        assert len(found) >= 7
        for selector in found:
            assert any(selector.items() <= each.items() for each in labels), selector
        for deployment in of_kind("Deployment"):
            mine = deployment["spec"]["template"]["metadata"]["labels"]
            assert deployment["spec"]["selector"]["matchLabels"] == mine

    def test_scale_existing_workloads(self) -> None:
        names = {deployment["metadata"]["name"] for deployment in of_kind("Deployment")}
        scalers = [*of_kind("HorizontalPodAutoscaler"), *of_kind("ScaledObject")]
        assert {scaler["spec"]["scaleTargetRef"]["name"] for scaler in scalers} == names
        assert all("replicas" not in deployment["spec"] for deployment in of_kind("Deployment"))

    def test_scale_workers_by_a_metric_of_the_gateways(self) -> None:
        (scaler,) = of_kind("ScaledObject")
        (trigger,) = scaler["spec"]["triggers"]
        metrics = GatewayMetrics()
        metrics.add_gauge("sfumato_jobs", "x", lambda: {"waiting": 1}, "state")
        assert "max by (state) (sfumato_jobs{" in trigger["metadata"]["query"]
        assert "sfumato_jobs" in {family.name for family in metrics.registry.collect()}
        assert scaler["spec"]["minReplicaCount"] >= 1

    def test_contain_no_secret(self) -> None:
        assert of_kind("Secret") == []
        secret = {"database_url", "redis_url", "records_key"}
        for component in WORKLOADS:
            for name, item in environment(component).items():
                if name.removeprefix("SFUMATO_").lower() in secret:
                    assert set(item["valueFrom"]) == {"secretKeyRef"}


class TestPods:
    def test_use_the_commands_of_the_image(self) -> None:
        assert set(templates()) == WORKLOADS
        assert {component: container(component)["args"] for component in WORKLOADS} == {
            component: [component] for component in WORKLOADS
        }

    @pytest.mark.parametrize("component", sorted(WORKLOADS))
    def test_have_valid_settings(self, component: str) -> None:
        told = environment(component)
        assert {name.removeprefix("SFUMATO_").lower() for name in told} <= set(Settings.model_fields)
        plain = {name.removeprefix("SFUMATO_").lower(): value for name, value in told.items() if isinstance(value, str)}
        assert Settings.model_validate(plain)

    @pytest.mark.parametrize("component", sorted(WORKLOADS))
    def test_have_no_privileges(self, component: str) -> None:
        pod = templates()[component]["spec"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container(component)["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container(component)["resources"]["requests"])
        assert "memory" in container(component)["resources"]["limits"]

    @pytest.mark.parametrize("component", sorted(WORKLOADS))
    def test_write_only_to_their_volumes(self, component: str) -> None:
        volumes = {volume["name"]: volume for volume in templates()[component]["spec"]["volumes"]}
        mounts = container(component)["volumeMounts"]
        assert {mount["mountPath"] for mount in mounts} == {"/tmp"}  # noqa: S108 - where the image keeps its caches
        assert all("emptyDir" in volumes[mount["name"]] for mount in mounts)

    def test_of_gateways_have_scratch_space_for_batches(self) -> None:
        needed = UPLOADS_AT_ONCE * Settings().max_records_bytes >> 20
        (volume,) = templates()["gateway"]["spec"]["volumes"]
        in_kubernetes = int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi"))
        storage = int(container("gateway")["resources"]["limits"]["ephemeral-storage"].removesuffix("Mi"))
        (mount,) = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]["gateway"]["tmpfs"]
        in_compose = int(mount.removeprefix("/tmp:size=").removesuffix("m"))  # noqa: S108 - the path in the image
        assert needed < in_kubernetes < storage
        assert needed < in_compose

    def test_have_probes_of_existing_routes(self, tmp_path: Path) -> None:
        document = create_app(Settings(home=tmp_path)).openapi()
        probes = {name: value for name, value in container("gateway").items() if name.endswith("Probe")}
        assert set(probes) == {"startupProbe", "livenessProbe", "readinessProbe"}
        for name, probe in probes.items():
            assert "get" in document["paths"][probe["httpGet"]["path"]]
            assert (probe["httpGet"]["path"] == "/readyz") == (name == "readinessProbe")

    def test_listen_on_the_probed_ports(self) -> None:
        image = (FOLDER.parents[1] / "Dockerfile").read_text()
        ports = {port["name"]: port["containerPort"] for port in container("gateway")["ports"]}
        assert f"SFUMATO_PORT={ports['http']}" in image
        for component in ("gateway", "worker"):
            told = {port["name"]: port["containerPort"] for port in container(component)["ports"]}
            assert str(told["metrics"]) == environment(component)["SFUMATO_METRICS_PORT"]
            annotations = templates()[component]["metadata"]["annotations"]
            assert annotations["prometheus.io/port"] == str(told["metrics"])
        (service,) = of_kind("Service")
        assert [port["targetPort"] for port in service["spec"]["ports"]] == ["http"]  # and not the metrics
        named = {port["port"] for policy in of_kind("NetworkPolicy") for rule in policy["spec"].get("ingress", ())
                 for port in rule["ports"]}  # fmt: skip
        assert named == set(ports)

    def test_may_send_webhooks_to_the_addresses_that_gateways_allow(self) -> None:
        (policy,) = (p for p in of_kind("NetworkPolicy") if p["metadata"]["name"] == "sfumato-webhooks")
        (rule,) = policy["spec"]["egress"]
        blocks = [each["ipBlock"] for each in rule["to"]]

        def is_open(address: str) -> bool:
            at = ip_address(address)
            return any(
                at in ip_network(block["cidr"]) and not any(at in ip_network(each) for each in block["except"])
                for block in blocks
            )

        for network in NEVER:
            assert not is_open(str(network[0])), network
            assert not is_open(str(network[-1])), network
        public = ("1.1.1.1", "223.255.255.254", "2606:4700::1111", "2a00:1450::1")
        assert all(is_open(address) and is_allowed(ip_address(address), ()) for address in public)
        ports = [(each["port"], each.get("endPort")) for each in rule["ports"]]
        assert ports == [(443, None), (FIRST_FREE_PORT, 65535)]

    def test_have_time_to_drain(self) -> None:
        drain = float(environment("gateway")["SFUMATO_DRAIN_SECONDS"])
        assert drain >= 10  # until all nodes know that the pod is terminating
        assert templates()["gateway"]["spec"]["terminationGracePeriodSeconds"] > drain + STOP_SECONDS

    def test_stay_in_the_service_during_a_fail_over_of_the_database(self) -> None:
        probe = container("gateway")["readinessProbe"]
        assert probe["periodSeconds"] * (probe["failureThreshold"] - 1) >= 40
        assert probe["timeoutSeconds"] > CHECK_SECONDS

    def test_of_busy_workers_may_finish_their_jobs(self) -> None:
        drain = float(environment("worker")["SFUMATO_WORKER_DRAIN_SECONDS"]["value"])
        assert templates()["worker"]["spec"]["terminationGracePeriodSeconds"] > drain > 600

    def test_may_send_traces(self) -> None:
        (policy,) = (p for p in of_kind("NetworkPolicy") if p["metadata"]["name"] == "sfumato-traces")
        (rule,) = policy["spec"]["egress"]
        assert rule["ports"] == [{"protocol": "TCP", "port": 4318}]  # OTLP/HTTP
        assert policy["spec"]["podSelector"] == {"matchLabels": {"app.kubernetes.io/name": "sfumato"}}


class TestIngress:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_is_valid_and_leads_to_the_service(self, version: str) -> None:
        ingress = yaml.safe_load((FOLDER / "examples" / "ingress.yaml").read_text())
        kubernetes_validate.validate(ingress, version, strict=True)
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        (service,) = of_kind("Service")
        found = path["backend"]["service"]
        assert found["name"] == service["metadata"]["name"]
        assert found["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
        assert ingress["spec"]["tls"][0]["hosts"] == [rule["host"]]

    def test_accepts_the_largest_upload_and_the_longest_wait(self) -> None:
        ingress = yaml.safe_load((FOLDER / "examples" / "ingress.yaml").read_text())
        options = {name.partition("/")[2]: value for name, value in ingress["metadata"]["annotations"].items()}
        defaults = {name: field.default for name, field in Settings.model_fields.items()}
        assert int(options["proxy-body-size"].removesuffix("m")) << 20 == defaults["max_records_bytes"]
        assert int(options["proxy-read-timeout"]) > defaults["max_wait_seconds"]


MONITORING = ROOT / "deploy" / "monitoring"
METRIC = re.compile(r"\bsfumato_[a-z_]+")
LABEL = re.compile(r"([a-z_]+)\s*(?:=|!=|=~|!~)\s*\"")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}


def expressions() -> dict[str, str]:
    """Return the queries of the alert rules and of the dashboard by name."""
    (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
    found = {rule["alert"]: rule["expr"] for rule in group["rules"]}
    for panel in json.loads((MONITORING / "dashboard.json").read_text())["panels"]:
        found |= {f"{panel['title']} {target['refId']}": target["expr"] for target in panel["targets"]}
    return found


def list_series(home: Path) -> dict[str, set[str]]:
    """Return the labels of every time series of gateways and workers by name."""
    gateway = create_app(Settings(home=home)).state.context.metrics
    found: dict[str, set[str]] = {}
    for registry in (gateway.registry, WorkerMetrics().registry):
        for collector in set(registry._collector_to_names):
            for family in collector.describe():  # type: ignore[attr-defined]
                labels = getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ())
                for suffix in SUFFIXES.get(family.type, ("",)):
                    found[family.name + suffix] = {*labels, "le", "instance"}
    return found


class TestMonitoring:
    def test_asks_for_existing_metrics_and_labels_only(self, tmp_path: Path) -> None:
        known = list_series(tmp_path)
        assert len(known) > 25
        for name, query in expressions().items():
            asked = set(METRIC.findall(query))
            assert asked, name
            assert asked <= set(known), (name, asked - set(known))
            labels = {*LABEL.findall(query), *re.findall(r"by \(([a-z_, ]+)\)", query)}
            given = set().union(*(known[metric] for metric in asked))
            assert {each.strip() for part in labels for each in part.split(",")} <= given, name

    def test_shows_every_documented_metric(self) -> None:
        page = (ROOT / "docs" / "operations.md").read_text()
        documented = set(re.findall(r"^\| `(sfumato_[a-z_]+)` \|", page, flags=re.MULTILINE))
        shown = {metric for query in expressions().values() for metric in METRIC.findall(query)}
        assert documented
        assert {name for name in documented if not any(each.startswith(name) for each in shown)} == set()

    def test_alerts_state_the_fault_and_the_remedy(self) -> None:
        (group,) = yaml.safe_load((MONITORING / "alerts.yaml").read_text())["groups"]
        assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"]) >= 8
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in {"critical", "warning"}
            assert set(rule["annotations"]) == {"summary", "description"}

    @pytest.mark.slow
    @pytest.mark.release
    def test_rules_are_valid_for_prometheus(self, tmp_path: Path) -> None:
        program = shutil.which("promtool")
        assert program, "no promtool: install Debian's package prometheus"
        rules = [
            {"record": f"check:{number}", "expr": query.replace("$__rate_interval", "5m")}
            for number, query in enumerate(expressions().values())
        ]
        (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
        for path in (MONITORING / "alerts.yaml", tmp_path / "queries.yaml"):
            subprocess.run([program, "check", "rules", path], check=True)
