"""The manifests as kustomize renders them: each rule holds for every overlay, and notices a
manifest that breaks it."""

from __future__ import annotations

import copy
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_core import PydanticUndefined

from stream_dedup.ground.version import __version__
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from tests.deploy import rules, tools
from tests.deploy.rules import Manifest

JUDGING = ("_PLAN", "_SIMILARITY", "_RECIPE", "_WINDOW", "_MODE", "_SEGMENTER", "_BETTER")
Rendered = dict[str, list[Manifest]]


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
TRIGGER = "spec/triggers/0/metadata"
BROKEN: dict[str, list[Callable[[list[Manifest]], None]]] = {
    "schema": [
        worker("spec/podManagementPolicy", 3),
        worker(f"{POD}/hostNetwrok", True),
        at("PodDisruptionBudget", "stream-dedup-index", "apiVersion", "policy/v1beta1"),
        at("KafkaTopic", "documents", "spec/partitions", 0),
        at("KafkaTopic", "documents", "metadata/labels", {}),
        at(
            "KafkaUser",
            "stream-dedup-worker",
            "spec/authorization/acls/0",
            {"resource": {"type": "topic"}, "operation": "Read"},
        ),
        at("ScaledObject", "stream-dedup-worker", f"{TRIGGER}/excludePersistentLag", True),
        at("ScaledObject", "stream-dedup-worker", f"{TRIGGER}/lagTreshold", "5"),
        at(
            "TriggerAuthentication",
            "stream-dedup-autoscaler",
            "spec/secretTargetRef/0/parameter",
            "pasword",
        ),
        at("PodMonitor", "stream-dedup", "spec/podMetricsEndpoints/0/interval", "often"),
        at("PrometheusRule", "stream-dedup", "spec/groups/0/rules/0/alert", "Both"),
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
        worker(f"{SECURITY}/procMount", "Unmasked"),
        worker(f"{POD}/securityContext/sysctls", [{"name": "kernel.msgmax", "value": "1"}]),
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
        at("NetworkPolicy", "stream-dedup-names", "spec/egress/1/to/0/ipBlock/cidr", "10.0.0.0/8"),
        at(
            "NetworkPolicy",
            "stream-dedup-names",
            "spec/egress/2/ports",
            [{"protocol": "UDP", "port": 53}],
        ),
        at("NetworkPolicy", "stream-dedup-metrics", "spec/ingress/0/from", []),
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
        worker(f"{POD}/volumes/0/secret/secretName", "other"),
    ],
    "scaled": [
        at("ScaledObject", "stream-dedup-worker", "spec/maxReplicaCount", 100),
        at("ScaledObject", "stream-dedup-worker", "spec/minReplicaCount", 0),
        at("ScaledObject", "stream-dedup-worker", f"{TRIGGER}/excludePersistentLag", "false"),
        at("ScaledObject", "stream-dedup-worker", f"{TRIGGER}/consumerGroup", "other"),
        at("ScaledObject", "stream-dedup-worker", "spec/scaleTargetRef/name", "other"),
        worker("spec/replicas", 2),
    ],
    "woken": [
        at(
            "PrometheusRule",
            "stream-dedup",
            "spec/groups/1/rules/0/annotations",
            {"runbook_url": "docs/handbook.md#x"},
        )
    ],
    "fenced": [
        at("Namespace", "stream-dedup", "metadata/labels", {}),
        at("Namespace", "stream-dedup", "metadata/labels/pod-security.kubernetes.io~1warn", ...),
    ],
}


@pytest.mark.thorough
@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_rule_holds_and_notices(
    rule: Callable[[list[Manifest]], list[str]], rendered: Rendered
) -> None:
    """Base and overlays keep it; each broken manifest set is found out, and the same one whole is
    not."""
    assert {name: found for name, manifests in rendered.items() if (found := rule(manifests))} == {}

    for number, break_it in enumerate(BROKEN[rule.__name__]):
        manifests = copy.deepcopy(rendered["production"])
        break_it(manifests)
        if rule is rules.schema:  # takes long, and looks at each by itself
            manifests = [one for one in manifests if one not in rendered["production"]]
        assert rule(manifests), f"{rule.__name__} does not notice broken manifest {number}"


def test_the_overlays_are_those_of_the_contract(rendered: Rendered) -> None:
    assert set(rendered) == {"base", "dev", "strimzi", "keda", "monitoring", "production"}
    kinds = {name: {one["kind"] for one in manifests} for name, manifests in rendered.items()}

    assert {"KafkaTopic", "KafkaUser"} <= kinds["strimzi"] & kinds["production"]
    assert "ScaledObject" in kinds["keda"] & kinds["production"]
    assert {"PrometheusRule", "PodMonitor"} <= kinds["monitoring"] & kinds["production"]
    assert not kinds["base"] & set(rules.SCHEMAS), "the base needs no operator"


def test_the_overlay_takes_the_topic_files_themselves(rendered: Rendered) -> None:
    files = [
        *(tools.ROOT / "topics").glob("*.yaml"),
        *(tools.ROOT / "topics" / "users").glob("*.yaml"),
    ]
    declared = {
        one["metadata"]["name"]: one["spec"]
        for path in files
        for one in yaml.safe_load_all(path.read_text())
        if "spec" in one
    }
    found = {
        one["metadata"]["name"]: one["spec"]
        for one in rules.of_kind(rendered["strimzi"], "KafkaTopic", "KafkaUser")
    }

    assert found == declared


def copied(folder: Path) -> Path:
    """Return the overlays of a copy that a test may change."""
    for name in ("deploy", "topics"):
        shutil.copytree(
            tools.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return folder / "deploy" / "overlays"


def test_one_index_is_one_line(kustomize: Path, tmp_path: Path) -> None:
    """There are two, each with a volume of its own; an overlay with `replicas` set to one renders
    one, and keeps all rules."""
    del kustomize
    file = copied(tmp_path) / "strimzi" / "kustomization.yaml"
    for wanted in (2, 1):
        manifests = list(yaml.safe_load_all(tools.render(file.parent)))
        assert find(manifests, "StatefulSet", "stream-dedup-index")["spec"]["replicas"] == wanted
        assert [problem for rule in rules.RULES for problem in rule(manifests)] == []
        file.write_text(file.read_text() + "replicas: [{name: stream-dedup-index, count: 1}]\n")


def test_image_and_handbook_are_named_in_one_place(kustomize: Path, tmp_path: Path) -> None:
    """The overlay's own registry and digest reach every pod of ours, its address of the handbook
    every alert."""
    del kustomize
    folder = copied(tmp_path) / "production"
    file, digest = folder / "kustomization.yaml", f"sha256:{'ab' * 32}"
    text = file.read_text().replace(
        "newName: stream-dedup", "newName: registry.example/crawl/stream-dedup"
    )
    file.write_text(text.replace(f"newTag: {__version__}", f"digest: {digest}"))
    (folder / "runbooks.yaml").write_text(
        (folder / "runbooks.yaml").read_text().replace("docs.example", "wiki.example")
    )

    manifests = list(yaml.safe_load_all(tools.render(folder)))

    images = {one["image"] for _, pod in rules.pods(manifests) for one in rules.containers(pod)}
    assert images == {f"registry.example/crawl/stream-dedup@{digest}"}
    (alerts,) = rules.of_kind(manifests, "PrometheusRule")
    pages = {rule["annotations"]["runbook_url"] for rule in alerts["spec"]["groups"][1]["rules"]}
    assert {one.partition("#")[0] for one in pages} == {
        "https://wiki.example/stream-dedup/handbook/"
    }
    assert [problem for rule in rules.RULES for problem in rule(manifests)] == []


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


def test_people_and_nobody_else_come_to_the_console(rendered: Rendered) -> None:
    """By the namespaces that are labelled for it; beside them the toolbox, and Prometheus where
    there is one. Out it goes to Kafka, to names and to the index, whose policy lets it in."""
    for name in ("base", "production"):
        manifests = rendered[name]
        pods = {role: pod["metadata"]["labels"] for role, _, pod in rules.role_pods(manifests)}
        policies = list(rules.of_kind(manifests, "NetworkPolicy"))
        own = [one for one in policies if rules.selects(one["spec"]["podSelector"], pods["search"])]

        comers = peers_of(own, "ingress")
        namespaces = [
            one["namespaceSelector"]["matchLabels"] for one in comers if "namespaceSelector" in one
        ]
        monitoring = [{"kubernetes.io/metadata.name": "monitoring"}] if name == "production" else []
        assert sorted(namespaces, key=str) == [*monitoring, {"stream-dedup/console": "people"}]
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
        to_index = [
            one for one in policies if rules.selects(one["spec"]["podSelector"], pods["index"])
        ]
        assert any(
            rules.selects(one.get("podSelector", {"matchLabels": {"-": "-"}}), pods["search"])
            for one in peers_of(to_index, "ingress")
        )


def test_the_ingress_of_the_page_on_the_console_fits(rendered: Rendered) -> None:
    """Kubernetes takes it, it leads to a port of a Service that is there, and its path can be the
    console's prefix."""
    page = (tools.ROOT / "docs" / "how-to" / "console.md").read_text(encoding="utf-8")
    (ingress,) = (
        yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    )
    assert rules.schema([ingress]) == []

    (rule,) = ingress["spec"]["rules"]
    (way,) = rule["http"]["paths"]
    to = way["backend"]["service"]
    service = find(rendered["base"], "Service", to["name"])
    assert to["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    assert f"CONSOLE_PREFIX={way['path']}`" in page
    assert load_settings({"console_prefix": way["path"]}, environ={}).console_prefix == way["path"]
    assert f"https://{rule['host']}{way['path']}`" in page


def test_production_asks_for_the_token_of_the_console(rendered: Rendered) -> None:
    """From a Secret of its own; the others do not, and let in whoever reaches the port."""
    for name, manifests in rendered.items():
        (container,) = find(manifests, "StatefulSet", "stream-dedup-search")["spec"]["template"][
            "spec"
        ]["containers"]
        given = {one["name"]: one.get("value") for one in container["env"]}
        file = given.get("STREAM_DEDUP_CONSOLE_TOKEN_FILE")
        assert file == ("/run/secrets/console/token" if name == "production" else None), name


def test_the_toolbox_reaches_kafka_and_the_roles(rendered: Rendered) -> None:
    """As the operator's user, with the roles' settings and key; nobody else is let in by it."""
    for name in ("base", "production"):
        manifests = rendered[name]
        pod = find(manifests, "Deployment", "stream-dedup-toolbox")["spec"]["template"]
        labels = pod["metadata"]["labels"]
        own = [
            one
            for one in rules.of_kind(manifests, "NetworkPolicy")
            if rules.selects(one["spec"]["podSelector"], labels)
        ]
        names = {one["metadata"]["name"] for one in own}
        wanted = {"names", "kafka", "others", "toolbox", "default-deny"}
        assert {f"stream-dedup-{name}" for name in wanted} == names
        (asked,) = find(manifests, "NetworkPolicy", "stream-dedup-asked")["spec"]["ingress"]
        assert [rules.selects(one["podSelector"], labels) for one in asked["from"]] == [True]
    users = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
    assert users["STREAM_DEDUP_KAFKA_SASL_USERNAME"] == "stream-dedup-operator"


def stated() -> Iterator[tuple[Path, str, str, str]]:
    """Yield (file, setting, value, the line above) for each setting that a manifest, the compose
    file or the image states."""
    deploy = tools.ROOT / "deploy"
    files = [*deploy.rglob("*.yaml"), *deploy.rglob("*.env"), deploy / "Dockerfile"]
    # What is made of the base, and names that stand in sentences.
    for path in sorted(one for one in files if "made" not in one.parts):
        lines = ["", *path.read_text(encoding="utf-8").splitlines()]
        for number, line in enumerate(lines[1:], 1):
            found = re.match(
                r"^[\s-]*(?:\{?name: |value: \{name: )?(STREAM_DEDUP_[A-Z_]+)(.*)$", line
            )
            if found is None:
                continue
            rest = found[2] if found[2].strip() else lines[number + 1].strip()
            value = re.match(r"(?:=|: |, value: |value: )(.*?)(?: \\|\})?$", rest)
            yield path, found[1], (value[1] if value else rest).strip("\"'"), above(lines, number)


def above(lines: list[str], number: int) -> str:
    """Return the comment above a line, or above the settings in front of it."""
    for line in reversed(lines[:number]):
        text = line.strip()
        if text.startswith("#"):
            return text
        if not re.match(r"(- |- \{)?(name: )?STREAM_DEDUP_|value: |<<: |ENV |PYTHON", text):
            return ""
    return ""


def test_every_setting_that_a_manifest_states_has_its_reason() -> None:
    """Base, components, overlays, compose file and image run the defaults: what differs has a
    comment above it, what is the default already is not stated, and what decides verdicts is
    nobody's but the operator's."""
    found = list(stated())
    fields = Settings.model_fields
    assert len(found) >= 30
    assert {name for _, name, _, _ in found if name.endswith(JUDGING)} == set()

    bare = [(path.name, name) for path, name, _, reason in found if not reason]
    assert bare == []
    repeated = []
    for path, name, value, _ in found:
        field = fields.get(name.removeprefix("STREAM_DEDUP_").lower())
        default = (
            None if field is None or field.default is PydanticUndefined else str(field.default)
        )
        if default == value:
            repeated.append((path.name, name))
    assert repeated == []
    assert not above(["", "env:", "  - name: A"], 2)


def test_the_chart_states_what_the_base_states() -> None:
    """So that a cluster judges as the product does, however it was installed."""
    values = yaml.safe_load(
        (tools.ROOT / "deploy" / "chart" / "values.yaml").read_text(encoding="utf-8")
    )
    assert set(values["settings"]) == {"STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS"}
