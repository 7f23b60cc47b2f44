"""Rules for manifests: each rule is a function that returns what is wrong with them.

A rule checks one thing; `test_manifests.py` also tests each rule with a broken manifest.
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
# Roles that fingerprint texts, or compute digests of ids, with the key.
KEYED = ("worker", "search", "toolbox")
SCHEMAS: dict[str, Any] = {}
for _path in sorted((Path(__file__).parent / "schemas").glob("*.yaml")):
    SCHEMAS |= yaml.safe_load(_path.read_text())
# Secrets that operators create; Strimzi creates the Secret of a KafkaUser.
FOREIGN_SECRETS = {"kafka-cluster-ca-cert", "stream-dedup-key", "stream-dedup-console"}
# Volume types that the Pod Security Standard allows.
VOLUMES = "name configMap csi downwardAPI emptyDir ephemeral persistentVolumeClaim projected secret"
LAST_TRANSACTION_SECONDS = 30
NODE_LOCAL_DNS = "169.254.20.10/32"


def describe(manifest: Manifest) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def of_kind(manifests: list[Manifest], *kinds: str) -> Iterator[Manifest]:
    return (manifest for manifest in manifests if manifest["kind"] in kinds)


def pods(manifests: list[Manifest]) -> Iterator[tuple[Manifest, Manifest]]:
    yield from (
        (workload, workload["spec"]["template"])
        for workload in of_kind(manifests, "StatefulSet", "Deployment", "Job", "DaemonSet")
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
    """Return the container of a role, whose pod may have sidecars."""
    return next(container for container in pod["spec"]["containers"] if container["name"] == role)


def selects(selector: Manifest, labels: Manifest) -> bool:
    if any(labels.get(name) != value for name, value in selector.get("matchLabels", {}).items()):
        return False
    for expression in selector.get("matchExpressions", []):
        is_in = labels.get(expression["key"]) in expression.get("values", [])
        if {"In": is_in, "NotIn": not is_in, "Exists": expression["key"] in labels}.get(
            expression["operator"], False
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
    """Every manifest matches the schema of Kubernetes or its operator, without unknown fields."""
    for manifest in manifests:
        if manifest["kind"] in SCHEMAS:
            validator = Draft202012Validator(SCHEMAS[manifest["kind"]])
            yield from [
                f"{describe(manifest)}: {error.json_path}: {error.message}"
                for error in validator.iter_errors(manifest)
            ]
            continue
        try:
            kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        except (
            kubernetes_validate.ValidationError,
            kubernetes_validate.SchemaNotFoundError,
        ) as error:
            yield f"{describe(manifest)}: {error!r}"


@rule
def restricted(manifests: list[Manifest]) -> Iterator[str]:
    """Every pod meets the Pod Security Standard `restricted` of Kubernetes."""
    for workload, pod in pods(manifests):
        spec, where = pod["spec"], describe(workload)
        pod_context = spec.get("securityContext", {})
        yield from [
            f"{where}: {name} is set"
            for name in ("hostNetwork", "hostPID", "hostIPC")
            if spec.get(name)
        ]
        yield from [
            f"{where}: volume {volume['name']} is of no allowed kind"
            for volume in spec.get("volumes", [])
            if set(volume) - set(VOLUMES.split())
        ]
        for container in containers(pod):
            context = container.get("securityContext", {})
            merged = pod_context | context
            capabilities = context.get("capabilities", {})
            wrong = {
                "privileged": bool(context.get("privileged")),
                "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is not False,
                "capabilities": "ALL" not in capabilities.get("drop", [])
                or bool(set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}),
                "runAsNonRoot": merged.get("runAsNonRoot") is not True,
                "runAsUser": merged.get("runAsUser", 1) == 0,
                "seccompProfile": merged.get("seccompProfile", {}).get("type")
                not in {"RuntimeDefault", "Localhost"},
                "hostPort": any("hostPort" in port for port in container.get("ports", [])),
                "procMount": context.get("procMount", "Default") != "Default",
                "sysctls": bool(pod_context.get("sysctls")),
            }
            yield from [
                f"{where}: {name} of {container['name']} is not restricted"
                for name, is_wrong in wrong.items()
                if is_wrong
            ]


@rule
def sealed(manifests: list[Manifest]) -> Iterator[str]:
    """Our containers cannot write their root file system; no pod has a service account token."""
    for workload, pod in pods(manifests):
        if pod["spec"].get("automountServiceAccountToken") is not False:
            yield f"{describe(workload)} mounts a service account's token"
        if pod["spec"].get("enableServiceLinks") is not False:
            yield f"{describe(workload)} gets variables for every Service of its namespace"
        yield from [
            f"{describe(workload)}: the root of {container['name']} can be written"
            for container in containers(pod)
            if container["image"].startswith("stream-dedup")
            and container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True
        ]


@rule
def labelled(manifests: list[Manifest]) -> Iterator[str]:
    """Our resources carry the labels that Kubernetes recommends."""
    for manifest in manifests:
        if manifest["metadata"]["name"].startswith("stream-dedup") and manifest["kind"] in {
            "StatefulSet",
            "Service",
            "Job",
        }:
            missing_labels = {"name", "instance", "part-of", "component"} - {
                key.removeprefix("app.kubernetes.io/")
                for key in manifest["metadata"].get("labels", {})
            }
            yield from [
                f"{describe(manifest)} lacks the label app.kubernetes.io/{name}"
                for name in sorted(missing_labels)
            ]


@rule
def probed(manifests: list[Manifest]) -> Iterator[str]:
    """Roles have all three probes; neither lag nor a rebuild restarts a role."""
    for role, workload, pod in role_pods(manifests):
        container = main_container(role, pod)
        # An index that rebuilds has started: its liveness is checked, its duration is not limited.
        wanted = {
            "livenessProbe": "/livez",
            "readinessProbe": "/readyz",
            "startupProbe": "/startupz" if role == "worker" else "/livez",
        }
        yield from [
            f"{describe(workload)}: {probe} is not {path}"
            for probe, path in wanted.items()
            if container.get(probe, {}).get("httpGet", {}).get("path") != path
        ]


@rule
def sized(manifests: list[Manifest]) -> Iterator[str]:
    """Every container requests CPU and guaranteed memory, and none has a CPU limit."""
    for workload, pod in pods(manifests):
        for container in containers(pod):
            resources = container.get("resources", {})
            requests, resource_limits = resources.get("requests", {}), resources.get("limits", {})
            if (
                "cpu" not in requests
                or "memory" not in requests
                or requests["memory"] != resource_limits.get("memory")
            ):
                yield f"{describe(workload)}: {container['name']} states no CPU, or memory that is not guaranteed"
            if "cpu" in resource_limits:
                yield f"{describe(workload)}: {container['name']} is throttled, and would miss its session"


@rule
def pinned(manifests: list[Manifest]) -> list[str]:
    return [
        f"{describe(workload)}: the image {container['image']} has no version"
        for workload, pod in pods(manifests)
        for container in containers(pod)
        if not re.search(r"(:(?!latest$)[\w.-]+|@sha256:[0-9a-f]{64})$", container["image"])
    ]


@rule
def joined(manifests: list[Manifest]) -> Iterator[str]:
    """Workloads select their own pods, and every Service, budget and monitor selects a pod."""
    templates = [pod["metadata"]["labels"] for _, pod in pods(manifests)]
    yield from [
        f"{describe(workload)} does not select its own pods"
        for workload, pod in pods(manifests)
        if "selector" in workload["spec"]
        and not selects(workload["spec"]["selector"], pod["metadata"]["labels"])
    ]
    selectors = [
        (manifest, {"matchLabels": manifest["spec"]["selector"]})
        for manifest in of_kind(manifests, "Service")
    ]
    selectors += [
        (manifest, manifest["spec"]["selector"])
        for manifest in of_kind(manifests, "PodDisruptionBudget", "PodMonitor")
    ]
    yield from [
        f"{describe(manifest)} selects nothing"
        for manifest, selector in selectors
        if not any(selects(selector, labels) for labels in templates)
    ]
    services = {manifest["metadata"]["name"] for manifest in of_kind(manifests, "Service")}
    yield from [
        f"{describe(manifest)} names a Service that is not there"
        for manifest in of_kind(manifests, "StatefulSet")
        if manifest["spec"]["serviceName"] not in services
    ]


@rule
def drained(manifests: list[Manifest]) -> Iterator[str]:
    """A node can be drained: one pod of a role at a time, with time to finish its work."""
    for role, workload, pod in role_pods(manifests):
        labels = pod["metadata"]["labels"]
        budgets = [
            budget
            for budget in of_kind(manifests, "PodDisruptionBudget")
            if selects(budget["spec"]["selector"], labels)
        ]
        if [budget["spec"].get("maxUnavailable") for budget in budgets] != [1]:
            yield f"{describe(workload)} has no budget of one pod"
        needed = DRAIN_SECONDS + LAST_TRANSACTION_SECONDS
        if role == "worker" and pod["spec"].get("terminationGracePeriodSeconds", 30) <= needed:
            yield f"{describe(workload)} is killed within {needed:.0f} s, before a drain has ended"
        if {entry["topologyKey"] for entry in pod["spec"].get("topologySpreadConstraints", [])} != {
            "topology.kubernetes.io/zone",
            "kubernetes.io/hostname",
        }:
            yield f"{describe(workload)} is not spread over zones and nodes"
        yield from [
            f"{describe(workload)} is spread among other pods than its own"
            for constraint in pod["spec"].get("topologySpreadConstraints", [])
            if not selects(constraint["labelSelector"], labels)
        ]


@rule
def walled(manifests: list[Manifest]) -> Iterator[str]:
    """Our pods' traffic is denied by default, and no policy allows all of it."""
    policies = list(of_kind(manifests, "NetworkPolicy"))
    for _, workload, pod in role_pods(manifests):
        pod_policies = [
            policy
            for policy in policies
            if selects(policy["spec"]["podSelector"], pod["metadata"]["labels"])
        ]
        denying = [
            policy
            for policy in pod_policies
            if set(policy["spec"]["policyTypes"]) == {"Ingress", "Egress"}
            and not {"ingress", "egress"} & set(policy["spec"])
        ]
        if not denying:
            yield f"{describe(workload)} has no policy that denies by default"
        ports = {
            port["port"]
            for policy in pod_policies
            for rule in policy["spec"].get("egress", [])
            for port in rule.get("ports", [])
        }
        if not {53, 5353} <= ports or not ports & {9092, 9093}:
            yield f"{describe(workload)} reaches no names or no Kafka"
        peers = [
            peer
            for policy in pod_policies
            for rule in policy["spec"].get("egress", [])
            for peer in rule.get("to", [])
        ]
        if {"ipBlock": {"cidr": NODE_LOCAL_DNS}} not in peers:
            yield f"{describe(workload)} reaches no names where NodeLocal DNSCache answers"
    for policy in policies:
        rules = policy["spec"].get("ingress", []) + policy["spec"].get("egress", [])
        yield from [
            f"{describe(policy)} opens every port" for rule in rules if not rule.get("ports")
        ]
        yield from [
            f"{describe(policy)} lets everybody in"
            for rule in policy["spec"].get("ingress", [])
            if not rule.get("from")
        ]


@rule
def opened(manifests: list[Manifest]) -> Iterator[str]:
    """A policy names our pods by labels that they have, and other pods by their own labels."""
    templates = [pod["metadata"]["labels"] for _, pod in pods(manifests)]
    for policy in of_kind(manifests, "NetworkPolicy"):
        rules = policy["spec"].get("ingress", []) + policy["spec"].get("egress", [])
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
                or not any(selects(peer["podSelector"], template) for template in templates)
            ):
                yield f"{describe(policy)} means pods that have our labels and are not there: {labels}"


@rule
def probed_by_name(manifests: list[Manifest]) -> Iterator[str]:
    """Only headless Services and the console's Service lead to pods that are not ready."""
    for service in of_kind(manifests, "Service"):
        name, spec = service["metadata"]["name"], service["spec"]
        is_for_all = spec.get("clusterIP") == "None" or name.endswith("-search")
        if "stream-dedup" in name and is_for_all != bool(spec.get("publishNotReadyAddresses")):
            yield f"{describe(service)} leads to other pods than it should while they are not ready"


@rule
def stored(manifests: list[Manifest]) -> Iterator[str]:
    """Index and search keep their folder on a volume that only one pod can mount."""
    for role, workload, pod in role_pods(manifests):
        if role not in ("index", "search"):
            continue
        claims = {
            claim["metadata"]["name"]: claim["spec"]
            for claim in workload["spec"].get("volumeClaimTemplates", [])
        }
        container = main_container(role, pod)
        stated = {entry["name"]: entry.get("value") for entry in container.get("env", [])}
        folder = f"{stated.get('STREAM_DEDUP_STATE_DIR', IMAGE_STATE_DIR)}/{role}"
        mounts = [
            mount["name"]
            for mount in container["volumeMounts"]
            if folder.startswith(mount["mountPath"] + "/")
        ]
        if not mounts or claims.get(mounts[0], {}).get("accessModes") != ["ReadWriteOncePod"]:
            yield f"{describe(workload)} keeps its {role} on no volume of one pod"


@rule
def identified(manifests: list[Manifest]) -> Iterator[str]:
    """A worker's transactional id comes from its pod's stable name, its rack from the zone."""
    for role, workload, pod in role_pods(manifests):
        container = main_container(role, pod)
        fields = {
            entry["name"]: entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            for entry in container.get("env", [])
        }
        if (
            fields.get("STREAM_DEDUP_KAFKA_CLIENT_RACK")
            != "metadata.labels['topology.kubernetes.io/zone']"
        ):
            yield f"{describe(workload)} does not know its zone"
        if role == "worker" and (
            workload["kind"] != "StatefulSet"
            or workload["spec"].get("podManagementPolicy") != "Parallel"
            or fields.get("STREAM_DEDUP_WORKER_ID") != "metadata.name"
        ):
            yield f"{describe(workload)} has no stable name per ordinal, or starts one after another"


@rule
def configured(manifests: list[Manifest]) -> Iterator[str]:
    """The environment of each pod is a valid set of settings for the program."""
    maps = {item["metadata"]["name"]: item["data"] for item in of_kind(manifests, "ConfigMap")}
    for role, workload, pod in role_pods(manifests):
        container = main_container(role, pod)
        environment: dict[str, str] = {}
        for source in container.get("envFrom", []):
            environment |= maps.get(source["configMapRef"]["name"], {})
        limit = container.get("resources", {}).get("limits", {}).get("memory", "")
        for entry in container.get("env", []):
            is_limit = "resourceFieldRef" in entry.get("valueFrom", {})
            environment[entry["name"]] = (
                f"{limit}B" if is_limit else entry.get("value", "from-the-pod")
            )
        if role == "index" and environment.get("STREAM_DEDUP_MEMORY") != f"{limit}B":
            yield f"{describe(workload)} does not keep within the memory that it is given"
        # Files exist only in the pod, so only their mounts can be checked.
        files = {
            name: value for name, value in environment.items() if value.startswith("/run/secrets/")
        }
        mounts = [volume["mountPath"] for volume in container["volumeMounts"]]
        yield from [
            f"{describe(workload)}: {name} is on no mounted volume"
            for name, value in files.items()
            if not any(value.startswith(mount + "/") for mount in mounts)
        ]
        settings = {name: value for name, value in environment.items() if name not in files}
        try:
            load_settings({}, None, environ=settings)
        except ConfigurationError as error:
            yield f"{describe(workload)}: {error}"


@rule
def keyed(manifests: list[Manifest]) -> Iterator[str]:
    """Only pods that use the key of the fingerprints mount it."""
    for workload, pod in pods(manifests):
        role = workload["metadata"]["labels"].get("app.kubernetes.io/component")
        secrets = [
            volume.get("secret", {}).get("secretName", "")
            for volume in pod["spec"].get("volumes", [])
        ]
        if ("stream-dedup-key" in secrets) != (role in KEYED):
            yield f"{describe(workload)} {'has' if role not in KEYED else 'lacks'} the key of the fingerprints"


@rule
def referring(manifests: list[Manifest]) -> Iterator[str]:
    """Every ConfigMap, Secret and account that a pod names exists or is created by others."""
    existing = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in manifests}
    existing |= {("Secret", name) for name in FOREIGN_SECRETS} | {("ServiceAccount", "default")}
    existing |= {
        ("Secret", manifest["metadata"]["name"]) for manifest in of_kind(manifests, "KafkaUser")
    }
    for workload, pod in pods(manifests):
        wanted = [("ServiceAccount", pod["spec"].get("serviceAccountName", "default"))]
        wanted += [
            ("Secret", volume["secret"]["secretName"])
            for volume in pod["spec"].get("volumes", [])
            if "secret" in volume
        ]
        for container in containers(pod):
            wanted += [
                ("ConfigMap", source["configMapRef"]["name"])
                for source in container.get("envFrom", [])
            ]
        yield from [
            f"{describe(workload)} names {kind} {name}, which nobody makes"
            for kind, name in wanted
            if (kind, name) not in existing
        ]


@rule
def scaled(manifests: list[Manifest]) -> Iterator[str]:
    """KEDA scales the workers by lag, from one to as many as there are partitions."""
    partitions = {topic.kind: topic for topic in read_topics()}["documents"].partitions
    workloads = {
        workload["metadata"]["name"]: workload for workload in of_kind(manifests, "StatefulSet")
    }
    for scaler in of_kind(manifests, "ScaledObject"):
        spec, trigger = scaler["spec"], scaler["spec"]["triggers"][0]["metadata"]
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
        yield from [
            f"{describe(scaler)} {problem}" for problem, is_wrong in wrong.items() if is_wrong
        ]
