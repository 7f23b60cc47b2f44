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


worker, index = (partial(at, "StatefulSet", f"stream-dedup-{role}") for role in ("worker", "index"))


POD, CONTAINER = "spec/template/spec", "spec/template/spec/containers/0"
SECURITY = f"{CONTAINER}/securityContext"
PEER = "podSelector/matchLabels"
BROKEN: dict[str, Callable[[list[Manifest]], None]] = {
    "schema": worker(f"{POD}/hostNetwrok", True),
    "restricted": worker(f"{SECURITY}/capabilities/drop", ["NET_RAW"]),
    "sealed": worker(f"{SECURITY}/readOnlyRootFilesystem", False),
    "labelled": at("Service", "stream-dedup-index", "metadata/labels", {}),
    "probed": index(f"{CONTAINER}/startupProbe/httpGet/path", "/startupz"),
    "sized": index(f"{CONTAINER}/resources/limits/memory", "9Gi"),
    "pinned": worker(f"{CONTAINER}/image", "stream-dedup:latest"),
    "joined": at("Service", "stream-dedup-index", "spec/selector", {"app": "other"}),
    "drained": worker(f"{POD}/terminationGracePeriodSeconds", 30),
    "walled": at("NetworkPolicy", "stream-dedup-asked", "spec/ingress/0/from", []),
    "opened": at(
        "NetworkPolicy",
        "stream-dedup-asked",
        f"spec/ingress/0/from/0/{PEER}/app.kubernetes.io~1component",
        "box",
    ),
    "probed_by_name": at("Service", "stream-dedup-index", "spec/publishNotReadyAddresses", ...),
    "stored": index("spec/volumeClaimTemplates/0/spec/accessModes", ["ReadWriteOnce"]),
    "identified": worker("spec/podManagementPolicy", "OrderedReady"),
    "configured": index(f"{CONTAINER}/resources/limits/memory", "256Mi"),
    "keyed": worker(f"{POD}/volumes", []),
    "referring": worker(f"{CONTAINER}/envFrom/0/configMapRef/name", "other"),
}
"""For each rule a change that breaks it."""


@pytest.mark.parametrize(
    "rule",
    [rule for rule in rules.RULES if rule is not rules.scaled],
    ids=lambda rule: rule.__name__,
)
def test_a_rule_holds_and_notices(
    rule: Callable[[list[Manifest]], list[str]], manifests: list[Manifest]
) -> None:
    assert rule(manifests) == []

    broken = copy.deepcopy(manifests)
    BROKEN[rule.__name__](broken)
    if rule is rules.schema:  # takes long, and looks at each by itself
        broken = [one for one in broken if one not in manifests]
    assert rule(broken)


def peers_of(policies: list[Manifest], direction: str) -> list[Any]:
    side = {"ingress": "from", "egress": "to"}[direction]
    return [
        peer
        for one in policies
        for rule in one["spec"].get(direction, [])
        for peer in rule.get(side, [])
    ]


def test_people_and_nobody_else_come_to_the_console(manifests: list[Manifest]) -> None:
    """Labelled namespaces and the toolbox come in; it goes out to Kafka, names and the index."""
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
    """No default is stated, and what decides verdicts is the operator's alone."""
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
