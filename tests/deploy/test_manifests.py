"""The manifests that people apply without Helm: each rule holds, and notices one that breaks it."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pydantic_core import PydanticUndefined

from stream_dedup.settings.settings import Settings
from tests.deploy import rules, tools
from tests.deploy.rules import Manifest


def find(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    return next(one for one in manifests if one["kind"] == kind and one["metadata"]["name"] == name)


def at(kind: str, name: str, path: str, value: object) -> Callable[[list[Manifest]], None]:
    """Return what sets (or with `...` removes) the field at a dotted path of one manifest."""

    def change(manifests: list[Manifest]) -> None:
        found: Any = find(manifests, kind, name)
        *steps, last = [
            int(step) if step.isdigit() else step.replace("~1", "/") for step in path.split("/")
        ]
        for step in steps:
            found = found[step]
        if value is ...:
            del found[last]
        else:
            found[last] = value

    return change


worker, index, search = (
    partial(at, "StatefulSet", f"stream-dedup-{role}") for role in ("worker", "index", "search")
)


def without(kind: str, name: str) -> Callable[[list[Manifest]], None]:
    return lambda manifests: manifests.remove(find(manifests, kind, name))


POD, CONTAINER = "spec/template/spec", "spec/template/spec/containers/0"
SECURITY = f"{CONTAINER}/securityContext"
PEER = "podSelector/matchLabels"
BROKEN: dict[str, list[Callable[[list[Manifest]], None]]] = {
    "schema": [
        worker("spec/podManagementPolicy", 3),
        worker(f"{POD}/hostNetwrok", True),
        at("PodDisruptionBudget", "stream-dedup-index", "apiVersion", "policy/v1beta1"),
    ],
    "restricted": [
        worker(f"{POD}/hostNetwork", True),
        worker(f"{POD}/volumes/0", {"name": "key", "hostPath": {"path": "/"}}),
        worker(f"{SECURITY}/privileged", True),
        worker(f"{SECURITY}/allowPrivilegeEscalation", ...),
        worker(f"{SECURITY}/capabilities/add", ["SYS_ADMIN"]),
        worker(f"{SECURITY}/capabilities/drop", ["NET_RAW"]),
        worker(f"{POD}/securityContext/runAsNonRoot", ...),
        worker(f"{SECURITY}/runAsUser", 0),
        worker(f"{POD}/securityContext/seccompProfile", {"type": "Unconfined"}),
        worker(f"{CONTAINER}/ports/0/hostPort", 8080),
    ],
    "sealed": [
        worker(f"{SECURITY}/readOnlyRootFilesystem", False),
        worker(f"{POD}/automountServiceAccountToken", ...),
        worker(f"{POD}/enableServiceLinks", True),
    ],
    "labelled": [at("Service", "stream-dedup-index", "metadata/labels", {})],
    "probed": [
        worker(f"{CONTAINER}/livenessProbe/httpGet/path", "/readyz"),
        index(f"{CONTAINER}/startupProbe/httpGet/path", "/startupz"),
        index(f"{CONTAINER}/readinessProbe", {"tcpSocket": {"port": "http"}}),
        search(f"{CONTAINER}/startupProbe/httpGet/path", "/startupz"),
    ],
    "sized": [
        worker(f"{CONTAINER}/resources", {}),
        index(f"{CONTAINER}/resources/limits/memory", "9Gi"),
        worker(f"{CONTAINER}/resources/limits/cpu", "1"),
    ],
    "pinned": [
        worker(f"{CONTAINER}/image", "stream-dedup"),
        worker(f"{CONTAINER}/image", "stream-dedup:latest"),
    ],
    "joined": [
        worker("spec/selector/matchLabels", {"app.kubernetes.io/component": "index"}),
        at("Service", "stream-dedup-index", "spec/selector", {"app": "other"}),
        at(
            "PodDisruptionBudget",
            "stream-dedup-index",
            "spec/selector/matchLabels",
            {"app": "other"},
        ),
        index("spec/serviceName", "other"),
    ],
    "drained": [
        worker(f"{POD}/terminationGracePeriodSeconds", 30),
        without("PodDisruptionBudget", "stream-dedup-worker"),
        without("PodDisruptionBudget", "stream-dedup-search"),
        at("PodDisruptionBudget", "stream-dedup-index", "spec/maxUnavailable", 0),
        index(f"{POD}/topologySpreadConstraints", []),
        index(
            f"{POD}/topologySpreadConstraints/0/labelSelector", {"matchLabels": {"app": "other"}}
        ),
    ],
    "walled": [
        without("NetworkPolicy", "stream-dedup-default-deny"),
        without("NetworkPolicy", "stream-dedup-names"),
        at("NetworkPolicy", "stream-dedup-kafka", "spec/egress/0/ports", []),
        at("NetworkPolicy", "stream-dedup-names", "spec/egress/0/to/1/ipBlock/cidr", "10.0.0.0/8"),
        at(
            "NetworkPolicy",
            "stream-dedup-names",
            "spec/egress/1/ports",
            [{"protocol": "UDP", "port": 53}],
        ),
        at("NetworkPolicy", "stream-dedup-asked", "spec/ingress/0/from", []),
    ],
    "opened": [
        at(
            "NetworkPolicy",
            "stream-dedup-names",
            f"spec/egress/0/to/0/{PEER}/app.kubernetes.io~1name",
            "stream-dedup",
        ),
        at(
            "NetworkPolicy",
            "stream-dedup-asked",
            f"spec/ingress/0/from/0/{PEER}/app.kubernetes.io~1component",
            "box",
        ),
    ],
    "probed_by_name": [
        at("Service", "stream-dedup-index", "spec/publishNotReadyAddresses", ...),
        at("Service", "stream-dedup-index-api", "spec/publishNotReadyAddresses", True),
    ],
    "stored": [
        index("spec/volumeClaimTemplates/0/spec/accessModes", ["ReadWriteOnce"]),
        index("spec/volumeClaimTemplates/0/metadata/name", "other"),
        search("spec/volumeClaimTemplates/0/metadata/name", "other"),
        index(f"{CONTAINER}/env", [{"name": "STREAM_DEDUP_STATE_DIR", "value": "/tmp"}]),
    ],
    "identified": [
        worker("spec/podManagementPolicy", "OrderedReady"),
        worker(f"{CONTAINER}/env", []),
        worker("kind", "Deployment"),
    ],
    "configured": [
        worker(f"{CONTAINER}/env/0", {"name": "STREAM_DEDUP_WORKER_IDD", "value": "a"}),
        worker(f"{CONTAINER}/volumeMounts", [{"name": "tmp", "mountPath": "/tmp"}]),
        index(f"{CONTAINER}/env", []),
        index(f"{CONTAINER}/resources/limits/memory", "256Mi"),
        search(
            f"{CONTAINER}/env/0",
            {"name": "STREAM_DEDUP_CONSOLE_INDX", "value": "http://stream-dedup-index:8080"},
        ),
    ],
    "keyed": [
        index(f"{POD}/volumes/0", {"name": "key", "secret": {"secretName": "stream-dedup-key"}}),
        worker(f"{POD}/volumes", []),
    ],
    "referring": [
        worker(f"{CONTAINER}/envFrom/0/configMapRef/name", "other"),
        worker(f"{POD}/serviceAccountName", "other"),
        worker(f"{POD}/volumes/2/secret/secretName", "other"),
    ],
}


@pytest.mark.parametrize(
    "rule",
    [rule for rule in rules.RULES if rule is not rules.scaled],
    ids=lambda rule: rule.__name__,
)
def test_a_rule_holds_and_notices(
    rule: Callable[[list[Manifest]], list[str]], manifests: list[Manifest]
) -> None:
    """The manifests keep it; each broken set is noticed."""
    assert rule(manifests) == []

    for number, break_it in enumerate(BROKEN[rule.__name__]):
        broken = copy.deepcopy(manifests)
        break_it(broken)
        if rule is rules.schema:  # takes long, and looks at each by itself
            broken = [one for one in broken if one not in manifests]
        assert rule(broken), f"{rule.__name__} does not notice broken manifest {number}"


def peers_of(policies: list[Manifest], direction: str) -> list[Any]:
    """Return who may come, or be gone to, by a set of policies; ports but for names and Kafka are
    all the role's own."""
    side = {"ingress": "from", "egress": "to"}[direction]
    return [
        peer
        for one in policies
        for rule in one["spec"].get(direction, [])
        for peer in rule.get(side, [])
    ]


def test_people_and_nobody_else_come_to_the_console(manifests: list[Manifest]) -> None:
    """By the namespaces that are labelled for it; beside them the toolbox. Out it goes to Kafka, to
    names and to the index, whose policy lets it in."""
    pods = {role: pod["metadata"]["labels"] for role, _, pod in rules.role_pods(manifests)}
    policies = list(rules.of_kind(manifests, "NetworkPolicy"))
    own = [one for one in policies if rules.selects(one["spec"]["podSelector"], pods["search"])]

    comers = peers_of(own, "ingress")
    namespaces = [
        one["namespaceSelector"]["matchLabels"] for one in comers if "namespaceSelector" in one
    ]
    assert namespaces == [{"stream-dedup/console": "people"}]
    components = [
        one["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for one in comers
        if "podSelector" in one
    ]
    assert components == ["toolbox"]

    ours = [
        one["podSelector"]
        for one in peers_of(own, "egress")
        if "namespaceSelector" not in one and "podSelector" in one
    ]
    reached = [
        role for role, labels in pods.items() if any(rules.selects(one, labels) for one in ours)
    ]
    assert reached == ["index"]
    to_index = [one for one in policies if rules.selects(one["spec"]["podSelector"], pods["index"])]
    assert any(
        rules.selects(one.get("podSelector", {"matchLabels": {"-": "-"}}), pods["search"])
        for one in peers_of(to_index, "ingress")
    )


def test_the_toolbox_reaches_kafka_and_the_roles(manifests: list[Manifest]) -> None:
    """With the roles' settings and key; nobody else is let in by the roles."""
    pod = find(manifests, "Deployment", "stream-dedup-toolbox")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    own = {
        one["metadata"]["name"].removeprefix("stream-dedup-")
        for one in rules.of_kind(manifests, "NetworkPolicy")
        if rules.selects(one["spec"]["podSelector"], labels)
    }
    assert own == {"names", "kafka", "others", "toolbox", "default-deny"}
    (asked,) = find(manifests, "NetworkPolicy", "stream-dedup-asked")["spec"]["ingress"]
    assert [rules.selects(one["podSelector"], labels) for one in asked["from"]] == [True]


JUDGING = ("_PLAN", "_SIMILARITY", "_RECIPE", "_WINDOW", "_MODE", "_LANGUAGES", "_BETTER")


def test_every_setting_of_a_pod_differs_from_its_default(manifests: list[Manifest]) -> None:
    """What is the default already is not stated, and what decides verdicts is the operator's
    alone."""
    stated = [
        (entry["name"], entry["value"])
        for _, pod in rules.pods(manifests)
        for container in rules.containers(pod)
        for entry in container["env"]
        if "value" in entry
    ]
    stated += [
        item for one in rules.of_kind(manifests, "ConfigMap") for item in one["data"].items()
    ]
    dockerfile = (tools.ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    stated += re.findall(r"(STREAM_DEDUP_[A-Z_]+)=(\S+)", dockerfile)
    assert len(stated) >= 14
    for name, value in stated:
        assert not name.endswith(JUDGING), name
        field = Settings.model_fields.get(name.removeprefix("STREAM_DEDUP_").lower())
        default = None if field is None else field.default
        assert default is PydanticUndefined or str(default) != value, name
