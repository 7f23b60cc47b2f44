"""Manifests for use without Helm: each rule holds, and reports a manifest that breaks it."""

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
    return next(
        manifest
        for manifest in manifests
        if manifest["kind"] == kind and manifest["metadata"]["name"] == name
    )


def change_field(
    kind: str, name: str, path: str, value: object
) -> Callable[[list[Manifest]], None]:
    """Return a function that sets, or with `...` removes, a field of a manifest."""

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


worker, index = (
    partial(change_field, "StatefulSet", f"stream-dedup-{role}") for role in ("worker", "index")
)


POD, CONTAINER = "spec/template/spec", "spec/template/spec/containers/0"
SECURITY = f"{CONTAINER}/securityContext"
PEER = "podSelector/matchLabels"
BROKEN: dict[str, Callable[[list[Manifest]], None]] = {
    "schema": worker(f"{POD}/hostNetwrok", True),
    "restricted": worker(f"{SECURITY}/capabilities/drop", ["NET_RAW"]),
    "sealed": worker(f"{SECURITY}/readOnlyRootFilesystem", False),
    "labelled": change_field("Service", "stream-dedup-index", "metadata/labels", {}),
    "probed": index(f"{CONTAINER}/startupProbe/httpGet/path", "/startupz"),
    "sized": index(f"{CONTAINER}/resources/limits/memory", "9Gi"),
    "pinned": worker(f"{CONTAINER}/image", "stream-dedup:latest"),
    "joined": change_field("Service", "stream-dedup-index", "spec/selector", {"app": "other"}),
    "drained": worker(f"{POD}/terminationGracePeriodSeconds", 30),
    "walled": change_field("NetworkPolicy", "stream-dedup-asked", "spec/ingress/0/from", []),
    "opened": change_field(
        "NetworkPolicy",
        "stream-dedup-asked",
        f"spec/ingress/0/from/0/{PEER}/app.kubernetes.io~1component",
        "box",
    ),
    "probed_by_name": change_field(
        "Service", "stream-dedup-index", "spec/publishNotReadyAddresses", ...
    ),
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
def test_a_rule_holds_and_reports_a_broken_manifest(
    rule: Callable[[list[Manifest]], list[str]], manifests: list[Manifest]
) -> None:
    assert rule(manifests) == []

    broken = copy.deepcopy(manifests)
    BROKEN[rule.__name__](broken)
    if rule is rules.schema:  # slow, and checks each manifest separately
        broken = [manifest for manifest in broken if manifest not in manifests]
    assert rule(broken)


def peers_of(policies: list[Manifest], direction: str) -> list[Any]:
    side = {"ingress": "from", "egress": "to"}[direction]
    return [
        peer
        for policy in policies
        for rule in policy["spec"].get(direction, [])
        for peer in rule.get(side, [])
    ]


def test_policies_of_the_console_allow_only_its_peers(manifests: list[Manifest]) -> None:
    """Labelled namespaces and the toolbox reach the console; it reaches only the index."""
    pods = {role: pod["metadata"]["labels"] for role, _, pod in rules.role_pods(manifests)}
    policies = list(rules.of_kind(manifests, "NetworkPolicy"))
    console_policies = [
        policy
        for policy in policies
        if rules.selects(policy["spec"]["podSelector"], pods["search"])
    ]

    sources = peers_of(console_policies, "ingress")
    namespaces = [
        peer["namespaceSelector"]["matchLabels"] for peer in sources if "namespaceSelector" in peer
    ]
    assert namespaces == [{"stream-dedup/console": "people"}]
    components = [
        peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for peer in sources
        if "podSelector" in peer
    ]
    assert components == ["toolbox"]

    selectors = [
        peer["podSelector"]
        for peer in peers_of(console_policies, "egress")
        if "namespaceSelector" not in peer and "podSelector" in peer
    ]
    reached = [
        role
        for role, labels in pods.items()
        if any(rules.selects(item, labels) for item in selectors)
    ]
    assert reached == ["index"]
    to_index = [
        policy for policy in policies if rules.selects(policy["spec"]["podSelector"], pods["index"])
    ]
    assert any(
        rules.selects(peer.get("podSelector", {"matchLabels": {"-": "-"}}), pods["search"])
        for peer in peers_of(to_index, "ingress")
    )


def test_the_toolbox_reaches_kafka_and_the_roles(manifests: list[Manifest]) -> None:
    """Policies allow the toolbox Kafka, DNS and the roles; the roles accept nobody else."""
    pod = find(manifests, "Deployment", "stream-dedup-toolbox")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    applied = {
        policy["metadata"]["name"].removeprefix("stream-dedup-")
        for policy in rules.of_kind(manifests, "NetworkPolicy")
        if rules.selects(policy["spec"]["podSelector"], labels)
    }
    assert applied == {"names", "kafka", "others", "toolbox", "default-deny"}
    (asked,) = find(manifests, "NetworkPolicy", "stream-dedup-asked")["spec"]["ingress"]
    assert [rules.selects(peer["podSelector"], labels) for peer in asked["from"]] == [True]


JUDGING = ("_PLAN", "_SIMILARITY", "_RECIPE", "_WINDOW", "_MODE", "_LANGUAGES", "_BETTER")


def test_every_setting_of_a_pod_differs_from_its_default(manifests: list[Manifest]) -> None:
    """No default is repeated, and settings that change verdicts are left to the operator."""
    stated = [
        (entry["name"], entry["value"])
        for _, pod in rules.pods(manifests)
        for container in rules.containers(pod)
        for entry in container["env"]
        if "value" in entry
    ]
    stated += [
        item
        for config_map in rules.of_kind(manifests, "ConfigMap")
        for item in config_map["data"].items()
    ]
    dockerfile = (tools.ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    stated += re.findall(r"(STREAM_DEDUP_[A-Z_]+)=(\S+)", dockerfile)
    assert len(stated) >= 14
    for name, value in stated:
        assert not name.endswith(JUDGING), name
        field = Settings.model_fields.get(name.removeprefix("STREAM_DEDUP_").lower())
        default = None if field is None else field.default
        assert default is PydanticUndefined or str(default) != value, name
