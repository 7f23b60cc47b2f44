"""What must hold of manifests: each rule is a function from them to sentences on what is wrong.

A rule looks at one thing; `test_manifests.py` shows each of them a broken manifest too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft202012Validator

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import read_topics
from stream_dedup.settings.layers import load_settings
from stream_dedup.worker.dependencies import DRAIN_SECONDS

_DOCKERFILE = Path(__file__).parents[2] / "deploy" / "Dockerfile"
IMAGE_STATE_DIR = re.findall(r"STREAM_DEDUP_STATE_DIR=(\S+)", _DOCKERFILE.read_text("utf-8"))[0]

Manifest = dict[str, Any]
RULES: list[Callable[[list[Manifest]], list[str]]] = []

KUBERNETES = "1.35"
ROLES = ("worker", "index", "insights", "search")
# Who fingerprints, or makes digests of ids with the key.
KEYED = ("worker", "search", "toolbox")
SCHEMAS: dict[str, Any] = {}
for _path in sorted((Path(__file__).parent / "schemas").glob("*.yaml")):
    SCHEMAS |= yaml.safe_load(_path.read_text())
# What people make; a KafkaUser's Secret is made by Strimzi.
FOREIGN_SECRETS = {"kafka-cluster-ca-cert", "stream-dedup-key", "stream-dedup-console"}
# What the Pod Security Standard allows.
VOLUMES = "name configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret"
LAST_TRANSACTION_SECONDS = 30
NODE_LOCAL_DNS = "169.254.20.10/32"


def named(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def of_kind(manifests: list[Manifest], *kinds: str) -> Iterator[Manifest]:
    return (one for one in manifests if one["kind"] in kinds)


def pods(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    yield from (
        (one, one["spec"]["template"])
        for one in of_kind(manifests, "StatefulSet", "Deployment", "Job", "DaemonSet")
    )


def containers(pod: Manifest) -> Iterator[Manifest]:
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def role_pods(manifests: list[Manifest]) -> Iterator[tuple[str, Manifest, Manifest]]:
    for workload, pod in pods(manifests):
        role = pod["metadata"]["labels"].get("app.kubernetes.io/component")
        if role in ROLES:
            yield role, workload, pod


def main_container(role: str, pod: Manifest) -> Manifest:
    """Return the container of a role; others may stand beside it."""
    return next(one for one in pod["spec"]["containers"] if one["name"] == role)


def selects(selector: Manifest, labels: Manifest) -> bool:
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    for one in selector.get("matchExpressions", []):
        is_in = labels.get(one["key"]) in one.get("values", [])
        if {"In": is_in, "NotIn": not is_in, "Exists": one["key"] in labels}.get(
            one["operator"], False
        ) is False:
            return False
    return True


def rule(
    function: Callable[[list[Manifest]], Iterable[str]],
) -> Callable[[list[Manifest]], list[str]]:
    @wraps(function)
    def listed(manifests: list[Manifest]) -> list[str]:
        return list(function(manifests))

    RULES.append(listed)
    return listed


@rule
def schema(manifests: list[Manifest]) -> Iterator[str]:
    """Kubernetes, or the operator of its kind, takes every manifest, without unknown fields."""
    for one in manifests:
        if one["kind"] in SCHEMAS:
            validator = Draft202012Validator(SCHEMAS[one["kind"]])
            yield from [
                f"{named(one)}: {error.json_path}: {error.message}"
                for error in validator.iter_errors(one)
            ]
            continue
        try:
            kubernetes_validate.validate(one, KUBERNETES, strict=True)
        except (
            kubernetes_validate.ValidationError,
            kubernetes_validate.SchemaNotFoundError,
        ) as error:
            yield f"{named(one)}: {error!r}"


@rule
def restricted(manifests: list[Manifest]) -> Iterator[str]:
    """Every pod is up to the Pod Security Standard `restricted` of Kubernetes."""
    for workload, pod in pods(manifests):
        spec, where = pod["spec"], named(workload)
        around = spec.get("securityContext", {})
        yield from [
            f"{where}: {name} is set"
            for name in ("hostNetwork", "hostPID", "hostIPC")
            if spec.get(name)
        ]
        yield from [
            f"{where}: volume {one['name']} is of no allowed kind"
            for one in spec.get("volumes", [])
            if set(one) - set(VOLUMES.split())
        ]
        for container in containers(pod):
            own = container.get("securityContext", {})
            both = around | own
            capabilities = own.get("capabilities", {})
            wrong = {
                "privileged": bool(own.get("privileged")),
                "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
                "capabilities": "ALL" not in capabilities.get("drop", [])
                or bool(set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}),
                "runAsNonRoot": both.get("runAsNonRoot") is not True,
                "runAsUser": both.get("runAsUser", 1) == 0,
                "seccompProfile": both.get("seccompProfile", {}).get("type")
                not in {"RuntimeDefault", "Localhost"},
                "hostPort": any("hostPort" in port for port in container.get("ports", [])),
                "procMount": own.get("procMount", "Default") != "Default",
                "sysctls": bool(around.get("sysctls")),
            }
            yield from [
                f"{where}: {name} of {container['name']} is not restricted"
                for name, is_wrong in wrong.items()
                if is_wrong
            ]


@rule
def sealed(manifests: list[Manifest]) -> Iterator[str]:
    """Our containers cannot write their root file system, and no pod has a token of Kubernetes."""
    for workload, pod in pods(manifests):
        if pod["spec"].get("automountServiceAccountToken") is not False:
            yield f"{named(workload)} mounts a service account's token"
        if pod["spec"].get("enableServiceLinks") is not False:
            yield f"{named(workload)} gets variables for every Service of its namespace"
        yield from [
            f"{named(workload)}: the root of {one['name']} can be written"
            for one in containers(pod)
            if one["image"].startswith("stream-dedup")
            and one.get("securityContext", {}).get("readOnlyRootFilesystem") is not True
        ]


@rule
def labelled(manifests: list[Manifest]) -> Iterator[str]:
    """Everything of ours carries the recommended labels, and pods say which role they are."""
    for one in manifests:
        if one["metadata"]["name"].startswith("stream-dedup") and one["kind"] in {
            "StatefulSet",
            "Service",
            "Job",
        }:
            missing_labels = {"name", "instance", "part-of", "component"} - {
                key.removeprefix("app.kubernetes.io/") for key in one["metadata"].get("labels", {})
            }
            yield from [
                f"{named(one)} lacks the label app.kubernetes.io/{name}"
                for name in sorted(missing_labels)
            ]


@rule
def probed(manifests: list[Manifest]) -> Iterator[str]:
    """Roles have all three probes; lag or a rebuild never restarts one."""
    for role, workload, pod in role_pods(manifests):
        container = main_container(role, pod)
        # An index that rebuilds has started: it must be watched, and not be bounded.
        wanted = {
            "livenessProbe": "/livez",
            "readinessProbe": "/readyz",
            "startupProbe": "/startupz" if role == "worker" else "/livez",
        }
        yield from [
            f"{named(workload)}: {probe} is not {path}"
            for probe, path in wanted.items()
            if container.get(probe, {}).get("httpGet", {}).get("path") != path
        ]


@rule
def sized(manifests: list[Manifest]) -> Iterator[str]:
    """Every container states CPU and guaranteed memory, and no CPU of our roles is throttled."""
    for workload, pod in pods(manifests):
        for container in containers(pod):
            resources = container.get("resources", {})
            requests, limits = resources.get("requests", {}), resources.get("limits", {})
            if (
                "cpu" not in requests
                or "memory" not in requests
                or requests["memory"] != limits.get("memory")
            ):
                yield f"{named(workload)}: {container['name']} states no CPU, or memory that is not guaranteed"
            if "cpu" in limits:
                yield f"{named(workload)}: {container['name']} is throttled, and would miss its session"


@rule
def pinned(manifests: list[Manifest]) -> list[str]:
    return [
        f"{named(workload)}: the image {one['image']} has no version"
        for workload, pod in pods(manifests)
        for one in containers(pod)
        if not re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", one["image"])
    ]


@rule
def joined(manifests: list[Manifest]) -> Iterator[str]:
    """Selectors take the pods they are meant for, and each Service and budget takes some."""
    templates = [pod["metadata"]["labels"] for _, pod in pods(manifests)]
    yield from [
        f"{named(workload)} does not select its own pods"
        for workload, pod in pods(manifests)
        if "selector" in workload["spec"]
        and not selects(workload["spec"]["selector"], pod["metadata"]["labels"])
    ]
    selectors = [
        (one, {"matchLabels": one["spec"]["selector"]}) for one in of_kind(manifests, "Service")
    ]
    selectors += [
        (one, one["spec"]["selector"])
        for one in of_kind(manifests, "PodDisruptionBudget", "PodMonitor")
    ]
    yield from [
        f"{named(one)} selects nothing"
        for one, selector in selectors
        if not any(selects(selector, labels) for labels in templates)
    ]
    services = {one["metadata"]["name"] for one in of_kind(manifests, "Service")}
    yield from [
        f"{named(one)} names a Service that is not there"
        for one in of_kind(manifests, "StatefulSet")
        if one["spec"]["serviceName"] not in services
    ]


@rule
def drained(manifests: list[Manifest]) -> Iterator[str]:
    """A node can be drained: one pod per role at a time, with time to end what was begun."""
    for role, workload, pod in role_pods(manifests):
        labels = pod["metadata"]["labels"]
        budgets = [
            one
            for one in of_kind(manifests, "PodDisruptionBudget")
            if selects(one["spec"]["selector"], labels)
        ]
        if [one["spec"].get("maxUnavailable") for one in budgets] != [1]:
            yield f"{named(workload)} has no budget of one pod"
        needed = DRAIN_SECONDS + LAST_TRANSACTION_SECONDS
        if role == "worker" and pod["spec"].get("terminationGracePeriodSeconds", 30) <= needed:
            yield f"{named(workload)} is killed within {needed:.0f} s, before a drain has ended"
        if {one["topologyKey"] for one in pod["spec"].get("topologySpreadConstraints", [])} != {
            "topology.kubernetes.io/zone",
            "kubernetes.io/hostname",
        }:
            yield f"{named(workload)} is not spread over zones and nodes"
        yield from [
            f"{named(workload)} is spread among other pods than its own"
            for one in pod["spec"].get("topologySpreadConstraints", [])
            if not selects(one["labelSelector"], labels)
        ]


@rule
def walled(manifests: list[Manifest]) -> Iterator[str]:
    """Nothing goes in or out of our pods that no policy names, and no policy opens everything."""
    policies = list(of_kind(manifests, "NetworkPolicy"))
    for _, workload, pod in role_pods(manifests):
        own = [
            one
            for one in policies
            if selects(one["spec"]["podSelector"], pod["metadata"]["labels"])
        ]
        denying = [
            one
            for one in own
            if set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"}
            and not {"ingress", "egress"} & set(one["spec"])
        ]
        if not denying:
            yield f"{named(workload)} has no policy that denies by default"
        ports = {
            port["port"]
            for one in own
            for rule in one["spec"].get("egress", [])
            for port in rule.get("ports", [])
        }
        if not {53, 5353} <= ports or not ports & {9092, 9093}:
            yield f"{named(workload)} reaches no names or no Kafka"
        peers = [
            peer
            for one in own
            for rule in one["spec"].get("egress", [])
            for peer in rule.get("to", [])
        ]
        if {"ipBlock": {"cidr": NODE_LOCAL_DNS}} not in peers:
            yield f"{named(workload)} reaches no names where NodeLocal DNSCache answers"
    for one in policies:
        rules = one["spec"].get("ingress", []) + one["spec"].get("egress", [])
        yield from [f"{named(one)} opens every port" for rule in rules if not rule.get("ports")]
        yield from [
            f"{named(one)} lets everybody in"
            for rule in one["spec"].get("ingress", [])
            if not rule.get("from")
        ]


@rule
def opened(manifests: list[Manifest]) -> Iterator[str]:
    """A policy lets in or out our pods by our labels, and other people's by theirs alone."""
    templates = [pod["metadata"]["labels"] for _, pod in pods(manifests)]
    for one in of_kind(manifests, "NetworkPolicy"):
        rules = one["spec"].get("ingress", []) + one["spec"].get("egress", [])
        for peer in (
            peer
            for rule in rules
            for peer in rule.get("from", []) + rule.get("to", [])
            if "podSelector" in peer
        ):
            labels = peer["podSelector"].get("matchLabels", {})
            is_ours = (
                labels.get("app.kubernetes.io/part-of", labels.get("app.kubernetes.io/name"))
                == "stream-dedup"
            )
            if is_ours and (
                "namespaceSelector" in peer
                or not any(selects(peer["podSelector"], one) for one in templates)
            ):
                yield f"{named(one)} means pods that have our labels and are not there: {labels}"


@rule
def probed_by_name(manifests: list[Manifest]) -> Iterator[str]:
    """A pod that is not ready is reached by its name, and by people at the console alone."""
    for one in of_kind(manifests, "Service"):
        name, spec = one["metadata"]["name"], one["spec"]
        is_for_all = spec.get("clusterIP") == "None" or name.endswith("-search")
        if "stream-dedup" in name and is_for_all != bool(spec.get("publishNotReadyAddresses")):
            yield f"{named(one)} leads to other pods than it should while they are not ready"


@rule
def stored(manifests: list[Manifest]) -> Iterator[str]:
    """The folders of the index and of a search are on a volume that one pod alone can mount."""
    for role, workload, pod in role_pods(manifests):
        if role not in ("index", "search"):
            continue
        claims = {
            one["metadata"]["name"]: one["spec"]
            for one in workload["spec"].get("volumeClaimTemplates", [])
        }
        container = main_container(role, pod)
        stated = {entry["name"]: entry.get("value") for entry in container.get("env", [])}
        folder = f"{stated.get('STREAM_DEDUP_STATE_DIR', IMAGE_STATE_DIR)}/{role}"
        mounts = [
            one["name"]
            for one in container["volumeMounts"]
            if folder.startswith(one["mountPath"] + "/")
        ]
        if not mounts or claims.get(mounts[0], {}).get("accessModes") != ["ReadWriteOncePod"]:
            yield f"{named(workload)} keeps its {role} on no volume of one pod"


@rule
def identified(manifests: list[Manifest]) -> Iterator[str]:
    """A worker's transactional id comes from its pod's stable name, its rack from the zone."""
    for role, workload, pod in role_pods(manifests):
        container = main_container(role, pod)
        fields = {
            one["name"]: one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            for one in container.get("env", [])
        }
        if (
            fields.get("STREAM_DEDUP_KAFKA_CLIENT_RACK")
            != "metadata.labels['topology.kubernetes.io/zone']"
        ):
            yield f"{named(workload)} does not know its zone"
        if role == "worker" and (
            workload["kind"] != "StatefulSet"
            or workload["spec"].get("podManagementPolicy") != "Parallel"
            or fields.get("STREAM_DEDUP_WORKER_ID") != "metadata.name"
        ):
            yield f"{named(workload)} has no stable name per ordinal, or starts one after another"


@rule
def configured(manifests: list[Manifest]) -> Iterator[str]:
    """What the pods get as environment is a valid set of settings, by the program's own check."""
    maps = {one["metadata"]["name"]: one["data"] for one in of_kind(manifests, "ConfigMap")}
    for role, workload, pod in role_pods(manifests):
        container = main_container(role, pod)
        environment: dict[str, str] = {}
        for one in container.get("envFrom", []):
            environment |= maps.get(one["configMapRef"]["name"], {})
        limit = container.get("resources", {}).get("limits", {}).get("memory", "")
        for one in container.get("env", []):
            is_limit = "resourceFieldRef" in one.get("valueFrom", {})
            environment[one["name"]] = f"{limit}B" if is_limit else one.get("value", "from-the-pod")
        if role == "index" and environment.get("STREAM_DEDUP_MEMORY") != f"{limit}B":
            yield f"{named(workload)} does not keep within the memory that it is given"
        # Files are there only in the pod; that they are mounted is looked at here.
        files = {
            name: value for name, value in environment.items() if value.startswith("/run/secrets/")
        }
        mounts = [one["mountPath"] for one in container["volumeMounts"]]
        yield from [
            f"{named(workload)}: {name} is on no mounted volume"
            for name, value in files.items()
            if not any(value.startswith(mount + "/") for mount in mounts)
        ]
        asked = {name: value for name, value in environment.items() if name not in files}
        try:
            load_settings({}, None, environ=asked)
        except ConfigurationError as error:
            yield f"{named(workload)}: {error}"


@rule
def keyed(manifests: list[Manifest]) -> Iterator[str]:
    """The key of the fingerprints is where texts are fingerprinted, and nowhere else."""
    for workload, pod in pods(manifests):
        role = workload["metadata"]["labels"].get("app.kubernetes.io/component")
        secrets = [
            volume.get("secret", {}).get("secretName", "")
            for volume in pod["spec"].get("volumes", [])
        ]
        if ("stream-dedup-key" in secrets) != (role in KEYED):
            yield f"{named(workload)} {'has' if role not in KEYED else 'lacks'} the key of the fingerprints"


@rule
def referring(manifests: list[Manifest]) -> Iterator[str]:
    """Every ConfigMap, Secret and account that a pod names is there, or is one that others make."""
    there = {(one["kind"], one["metadata"]["name"]) for one in manifests}
    there |= {("Secret", name) for name in FOREIGN_SECRETS} | {("ServiceAccount", "default")}
    there |= {("Secret", one["metadata"]["name"]) for one in of_kind(manifests, "KafkaUser")}
    for workload, pod in pods(manifests):
        wanted = [("ServiceAccount", pod["spec"].get("serviceAccountName", "default"))]
        wanted += [
            ("Secret", one["secret"]["secretName"])
            for one in pod["spec"].get("volumes", [])
            if "secret" in one
        ]
        for container in containers(pod):
            wanted += [
                ("ConfigMap", one["configMapRef"]["name"]) for one in container.get("envFrom", [])
            ]
        yield from [
            f"{named(workload)} names {kind} {name}, which nobody makes"
            for kind, name in wanted
            if (kind, name) not in there
        ]


@rule
def scaled(manifests: list[Manifest]) -> Iterator[str]:
    """KEDA scales the workers by lag, from one to as many as there are partitions."""
    partitions = {topic.kind: topic for topic in read_topics()}["documents"].partitions
    workloads = {one["metadata"]["name"]: one for one in of_kind(manifests, "StatefulSet")}
    for one in of_kind(manifests, "ScaledObject"):
        spec, trigger = one["spec"], one["spec"]["triggers"][0]["metadata"]
        target = workloads.get(spec["scaleTargetRef"]["name"])
        wrong = {
            "scales nothing that is there": target is None,
            "scales what states its own number of replicas": target is not None
            and "replicas" in target["spec"],
            "does not keep one worker": spec.get("minReplicaCount") != 1,
            "allows another number of workers than partitions": spec.get("maxReplicaCount")
            != partitions,
            "counts the lag of transaction markers": trigger.get("excludePersistentLag") != "true",
        }
        yield from [f"{named(one)} {what}" for what, is_wrong in wrong.items() if is_wrong]
