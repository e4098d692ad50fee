"""The shipped manifests: built by kubectl, valid, and in step with the server that they run."""

from __future__ import annotations

import re
import tomllib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.api.guard import MAX_BODY_BYTES
from app.metrics import Metrics
from app.serving import ENDING_S
from app.settings import AdmissionSettings, LoadedSettings, load_settings, secrets_of
from app.store.blocks import MOST_WAITING_BYTES
from app.stores import START_LIMIT_S
from tests.deploy.manifests import KUBERNETES, OVERLAYS, Manifest, built, copath_container, named, pods, quantity

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = KUBERNETES.parent.parent
SECRETS = "/run/secrets/copath"
OF_THE_OPERATOR = {"ServiceMonitor", "PrometheusRule"}  # defined by the Prometheus operator, not by Kubernetes
DATABASE = "postgresql+asyncpg://copath:made-up@database/copath"
PROCESSES_BYTES = 700 * 2**20
"""The server and two builder processes at work, without what the chains keep."""
AT_REST_BYTES = 150 * 2**20
"""Of all its processes, measured."""


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def manifests(overlay: str) -> list[Manifest]:
    return built(overlay)


@pytest.fixture
def loaded(manifests: list[Manifest], tmp_path: Path) -> LoadedSettings:
    """The configuration in the ConfigMap, read as the server reads it, with a secret in every file that it names."""
    text = named(manifests, "ConfigMap", "copath-config")["data"]["config.yaml"]
    for name in secret_files(text):
        made_up = f"https://{name}.example.org/made-up-key" if "rpc" in name else f"made-up {name} of some length"
        (tmp_path / name).write_text(DATABASE if name == "database-url" else made_up)
    (tmp_path / "config.yaml").write_text(text.replace(SECRETS, str(tmp_path)))
    return load_settings(str(tmp_path / "config.yaml"), {})


def secret_files(text: str) -> list[str]:
    return re.findall(rf"{SECRETS}/([\w-]+)", text)


def volumes_of(pod: Manifest) -> dict[str, Manifest]:
    return {volume["name"]: volume for volume in pod["volumes"]}


def containers(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest]]:
    for workload, pod in pods(manifests).items():
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            yield f"{workload}: {container['name']}", container


@pytest.mark.parametrize("version", ["1.30", "1.37"])
def test_kubernetes_takes_every_manifest(manifests: list[Manifest], version: str) -> None:
    judged = 0
    for manifest in manifests:
        if manifest["kind"] not in OF_THE_OPERATOR:
            kubernetes_validate.validate(manifest, version, strict=True)
            judged += 1
    assert judged >= 6


def test_the_server_takes_the_configuration(loaded: LoadedSettings) -> None:
    assert loaded.warnings == []
    assert loaded.settings.bind_host == "0.0.0.0"
    assert loaded.settings.chains


def test_secrets_are_files_that_the_instructions_name(
    overlay: str, manifests: list[Manifest], loaded: LoadedSettings
) -> None:
    text = named(manifests, "ConfigMap", "copath-config")["data"]["config.yaml"]
    instructions = (KUBERNETES / "overlays" / overlay / "kustomization.yaml").read_text()
    assert sorted(secret_files(text)) == sorted(re.findall(r"--from-file=([\w-]+)=", instructions))
    assert "Secret" not in {manifest["kind"] for manifest in manifests}
    made_up = [secret for secret in secrets_of(loaded.settings) if secret]
    assert len(made_up) >= 2
    told, bucket = str(manifests), loaded.settings.block_store_url or ""
    assert "@" not in bucket
    assert not [secret for secret in made_up if secret in told and secret not in bucket], "they come from files alone"
    for workload, pod in pods(manifests).items():
        if "nginx" not in workload:
            secret = volumes_of(pod)["secrets"]["secret"]
            assert (secret["secretName"], oct(secret["defaultMode"])) == ("copath", "0o440")


def test_the_server_is_given_time_to_end(manifests: list[Manifest], loaded: LoadedSettings) -> None:
    pod, settings = pods(manifests)["Deployment copath"], loaded.settings
    needed = settings.shutdown.lame_duck_secs + settings.drain_secs + ENDING_S
    assert pod["terminationGracePeriodSeconds"] >= needed + 10
    assert "preStop" not in str(copath_container(manifests)), "the lame duck is the server's own"
    ready = copath_container(manifests)["readinessProbe"]
    noticed = ready["periodSeconds"] * ready["failureThreshold"] + ready["timeoutSeconds"]
    assert settings.shutdown.lame_duck_secs >= noticed + 2, "or requests still come when the door closes"


def test_probes_ask_what_is_meant_for_them(manifests: list[Manifest], loaded: LoadedSettings) -> None:
    container = copath_container(manifests)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startup": "/livez",
        "liveness": "/livez",
        "readiness": "/readyz",
    }
    assert {ports[probe["port"]] for probe in asked.values()} == {loaded.settings.bind_port}
    startup, liveness = container["startupProbe"], container["livenessProbe"]
    # It listens after its database was waited for, builders were started and tables were read, on a machine that is busy.
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 10 * START_LIMIT_S
    # A loop that stands still for a while is late, not dead; and nobody is ended for a probe or two that were slow.
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= 30 > liveness["timeoutSeconds"]


def test_memory_holds_what_the_chains_may_keep(manifests: list[Manifest], loaded: LoadedSettings) -> None:
    limit = quantity(copath_container(manifests)["resources"]["limits"]["memory"])
    kept = sum(chain.cache.merkle_max_bytes for chain in loaded.settings.chains)
    assert kept + PROCESSES_BYTES <= limit
    requested = quantity(copath_container(manifests)["resources"]["requests"]["memory"])
    assert kept + AT_REST_BYTES + MOST_WAITING_BYTES <= requested, "or a machine gives away what is in use"
    assert "cpu" in copath_container(manifests)["resources"]["limits"], "the number of builders follows from the quota"


def test_nobody_may_more_than_needed(manifests: list[Manifest]) -> None:
    for workload, pod in pods(manifests).items():
        context = pod["securityContext"]
        assert context["runAsNonRoot"], workload
        assert context["runAsUser"] > 0, workload
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, workload
        assert pod["automountServiceAccountToken"] is False, workload
        assert pod["enableServiceLinks"] is False, workload
    for name, container in containers(manifests):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name
        assert not [entry for entry in container.get("env", ()) if "valueFrom" in entry], name


def test_whoever_runs_is_whom_the_image_is_made_for(manifests: list[Manifest]) -> None:
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert user is not None
    for workload, pod in pods(manifests).items():
        if "nginx" not in workload:
            context = pod["securityContext"]
            assert [str(context[name]) for name in ("runAsUser", "runAsGroup", "fsGroup")] == [*user.groups(), user[1]]


def test_every_container_of_ours_runs_this_version(manifests: list[Manifest]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    images = {container["image"] for name, container in containers(manifests) if "nginx" not in name}
    assert images == {f"registry.example.org/copath:{version}"}


def test_what_is_written_to_is_mounted(manifests: list[Manifest]) -> None:
    for name, container in containers(manifests):
        mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in container["volumeMounts"]}
        assert mounts["/tmp"] is False, name
    text = named(manifests, "ConfigMap", "copath-config")["data"]["config.yaml"]
    writable = {m["mountPath"] for m in copath_container(manifests)["volumeMounts"] if not m.get("readOnly", False)}
    for place in re.findall(r"(?:sqlite\+aiosqlite:///|file:|local_path: )(/\S+)", text):
        assert str(Path(place).parent) in writable


def test_the_volume_has_room_for_the_blocks(manifests: list[Manifest], loaded: LoadedSettings) -> None:
    data = volumes_of(pods(manifests)["Deployment copath"])["data"]
    if "persistentVolumeClaim" in data:
        claim = named(manifests, "PersistentVolumeClaim", data["persistentVolumeClaim"]["claimName"])
        room = quantity(claim["spec"]["resources"]["requests"]["storage"])
    else:
        room = quantity(data["emptyDir"]["sizeLimit"])
    assert loaded.settings.block_store.max_bytes <= 0.85 * room


def test_the_database_is_brought_up_to_date_before_it_is_used(overlay: str, manifests: list[Manifest]) -> None:
    migrating = [c for _, c in containers(manifests) if c.get("args", [""])[0] == "migrate"]
    assert [container["args"] for container in migrating] == [["migrate", "--config", "/etc/copath/config.yaml"]]
    jobs = [manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "Job"]
    # A volume that one pod at a time can mount is migrated in that pod.
    assert jobs == ([] if overlay == "single" else ["copath-migrate"])


def test_what_the_migration_stands_on_is_there_before_it_and_replicas_come_after_it() -> None:
    """Argo CD applies a PreSync hook before everything else, and waves within the sync from the lowest to the highest."""
    manifests = built("replicas")
    job = named(manifests, "Job", "copath-migrate")
    annotations = job["metadata"]["annotations"]
    assert annotations["argocd.argoproj.io/hook"] == "Sync"
    assert annotations["argocd.argoproj.io/hook-delete-policy"] == "BeforeHookCreation"
    pod = job["spec"]["template"]["spec"]
    for kind, name in (("ServiceAccount", pod["serviceAccountName"]), ("ConfigMap", "copath-config")):
        assert wave_of(named(manifests, kind, name)) <= wave_of(job)
    assert wave_of(job) < wave_of(named(manifests, "Deployment", "copath"))


def wave_of(manifest: Manifest) -> int:
    return int(manifest["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", 0))


def test_services_and_policies_meet_what_they_are_for(manifests: list[Manifest]) -> None:
    labels = {
        manifest["metadata"]["name"]: manifest["spec"]["template"]["metadata"]["labels"]
        for manifest in manifests
        if manifest["kind"] == "Deployment"
    }
    for manifest in manifests:
        spec: Any = manifest.get("spec", {})
        name = manifest["metadata"]["name"]
        if manifest["kind"] == "Service":
            assert spec["selector"] == labels[name]
        elif manifest["kind"] == "PodDisruptionBudget":
            assert spec["selector"]["matchLabels"] == labels[name]
            assert spec["maxUnavailable"] == 1
        elif manifest["kind"] == "NetworkPolicy":
            assert spec["podSelector"]["matchLabels"] == labels["copath"]
            assert set(spec["policyTypes"]) == {"Ingress", "Egress"}
        elif manifest["kind"] == "Deployment":
            assert spec["selector"]["matchLabels"] == labels[name]
            for spread in spec["template"]["spec"]["topologySpreadConstraints"]:
                assert spread["labelSelector"]["matchLabels"] == labels[name]


def test_one_replica_with_its_own_volume_is_never_two() -> None:
    spec = named(built("single"), "Deployment", "copath")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    claim = named(built("single"), "PersistentVolumeClaim", "copath")
    assert (
        volumes_of(spec["template"]["spec"])["data"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    )


def test_more_replicas_are_added_for_known_answers_and_never_for_saturation() -> None:
    scaling = named(built("replicas"), "HorizontalPodAutoscaler", "copath")["spec"]
    assert "replicas" not in named(built("replicas"), "Deployment", "copath")["spec"], "the autoscaler's to say"
    assert scaling["scaleTargetRef"]["name"] == "copath"
    assert [metric["type"] for metric in scaling["metrics"]] == ["ContainerResource", "Pods"]
    cpu, lane = scaling["metrics"][0]["containerResource"], scaling["metrics"][1]["pods"]
    assert (cpu["name"], cpu["container"]) == ("cpu", "copath")
    made = yaml.safe_load((ROOT / "deploy/prometheus/adapter.yaml").read_text())["rules"]["custom"]
    assert [rule["name"]["as"] for rule in made] == [lane["metric"]["name"]]
    exposed = Metrics().exposition(None)[0].decode()
    for rule in made:
        for query in (rule["seriesQuery"], rule["metricsQuery"]):
            assert set(re.findall(r"copath_\w+", query)) == {"copath_proof_duration_seconds_sum"}
            assert 'cache="hit"' in query
        assert "# TYPE copath_proof_duration_seconds histogram" in exposed
    assert "saturat" not in str(scaling)


def test_replicas_are_added_long_before_the_warm_lane_is_full() -> None:
    """The target of the autoscaler lies well below the places of the lane that it watches."""
    lane = named(built("replicas"), "HorizontalPodAutoscaler", "copath")["spec"]["metrics"][1]["pods"]
    places = AdmissionSettings().max_warm_in_flight
    assert places is not None
    assert float(lane["target"]["averageValue"]) <= places / 4


def test_prometheus_finds_the_server_and_nothing_else() -> None:
    manifests = built("replicas")
    monitor = named(manifests, "ServiceMonitor", "copath")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    found = [m for m in manifests if m["kind"] == "Service" and wanted <= m["metadata"]["labels"].items()]
    assert [service["metadata"]["name"] for service in found] == ["copath"]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in found[0]["spec"]["ports"]}
    assert endpoint["path"] == "/metrics"


def test_nginx_is_told_all_that_it_is_to_replace() -> None:
    manifests = built("replicas")
    container = pods(manifests)["Deployment copath-nginx"]["containers"][0]
    given = {entry["name"]: entry["value"] for entry in container["env"]}
    template = named(manifests, "ConfigMap", "copath-nginx")["data"]["copath.conf.template"]
    assert set(re.findall(r"\$\{(\w+)\}", template)) == set(given) - {"NGINX_ENVSUBST_FILTER"}
    host, _, port = given["COPATH_UPSTREAM"].partition(":")
    assert int(port) in {port["port"] for port in named(manifests, "Service", host)["spec"]["ports"]}
    assert int(given["COPATH_LISTEN"]) == container["ports"][0]["containerPort"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = volumes_of(pods(manifests)["Deployment copath-nginx"])
    room = quantity(volumes[mounts[str(Path(given["COPATH_CACHE_DIR"]).parent)]]["emptyDir"]["sizeLimit"])
    assert quantity(given["COPATH_CACHE_SIZE"].upper() + "i") < room
    largest = int(re.findall(r"proxy_max_temp_file_size (\d+)m;", template)[0]) * 2**20 + MAX_BODY_BYTES
    assert 200 * largest <= quantity(volumes["tmp"]["emptyDir"]["sizeLimit"]), "so many slow clients evict a pod"
    allowed = named(manifests, "NetworkPolicy", "copath")["spec"]["ingress"][0]["from"]
    labels = named(manifests, "Deployment", "copath-nginx")["spec"]["template"]["metadata"]["labels"]
    assert labels in [entry.get("podSelector", {}).get("matchLabels") for entry in allowed]
