"""The Helm chart: it is what the base is, and its values do what they say. Rendered and linted by
the real helm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_dedup.ground.version import __version__
from tests.deploy import rules, tools, write_chart
from tests.deploy.conftest import _or_skip
from tests.deploy.rules import Manifest

TEMPLATE = ("template", "stream-dedup", str(write_chart.CHART), "--kube-version", "1.35.0")


@pytest.fixture(scope="session")
def helm() -> Path:
    """The real helm."""
    return _or_skip(tools.helm)


def run(helm: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(helm), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def template(helm: Path, *arguments: str) -> list[Manifest]:
    done = run(helm, *TEMPLATE, *arguments)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


OWN_LABELS = ("helm.sh/chart", "app.kubernetes.io/managed-by", "app.kubernetes.io/version")


def in_bytes(manifests: list[Manifest]) -> str:
    """Return manifests in an order, with the labels and with the name of the settings, that both
    tools would agree on."""
    (config,) = (one["metadata"]["name"] for one in manifests if one["kind"] == "ConfigMap")
    for one in manifests:
        for label in OWN_LABELS:
            one["metadata"].get("labels", {}).pop(label, None)
    ordered = sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"]))
    return yaml.safe_dump_all(ordered, sort_keys=True).replace(config, "settings-by-name")


def of(manifests: list[Manifest], kind: str, name: str) -> Any:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


def test_the_templates_are_those_that_the_script_makes(kustomize: Path) -> None:
    """A change of the base, of a component or of the values without `make deploy-chart` is seen."""
    del kustomize
    assert {
        path.name: path.read_text() for path in write_chart.MADE.iterdir()
    } == write_chart.templates(), "make deploy-chart"
    copied = {path.name: path.read_text() for path in (write_chart.CHART / "files").iterdir()}
    assert copied == {name: path.read_text() for name, path in write_chart.copies().items()}, (
        "make deploy-chart"
    )
    assert (write_chart.CHART / "README.md").read_text() == write_chart.readme(), (
        "make deploy-chart"
    )
    assert (
        yaml.safe_load((write_chart.CHART / "Chart.yaml").read_text())["appVersion"] == __version__
    )


def test_the_readme_tells_each_value() -> None:
    def leaves(node: Any, path: str) -> set[str]:
        if not isinstance(node, dict) or not node:
            return {path}
        return set().union(
            *(leaves(value, f"{path}.{key}" if path else key) for key, value in node.items())
        )

    told = {
        line.split("`")[1]
        for line in write_chart.readme().partition("## Values")[2].splitlines()
        if line.startswith("- `")
    }
    values = yaml.safe_load((write_chart.CHART / "values.yaml").read_text())
    assert {
        one
        for one in leaves(values, "")
        if not any(f"{one}.".startswith(f"{name}.") for name in told)
    } == set()


def test_the_chart_is_the_base(helm: Path) -> None:
    """With its own values it gives what kustomize gives, but for Helm's labels, its test, and the
    settings' hash."""
    base = list(yaml.safe_load_all(tools.render(write_chart.ROOT / "deploy" / "base")))
    made = [one for one in template(helm) if one["kind"] != "Pod"]
    assert in_bytes(made) == in_bytes(base)


def test_helm_finds_nothing_to_complain_of(helm: Path) -> None:
    done = run(helm, "lint", "--strict", str(write_chart.CHART))
    assert done.returncode == 0, done.stdout


ALL_ON: dict[str, Any] = {
    "image": {
        "repository": "registry.example.com/filter",
        "digest": f"sha256:{'a' * 64}",
        "pullPolicy": "Always",
    },
    "imagePullSecrets": [{"name": "registry-login"}],
    "commonLabels": {"team": "crawl"},
    "settings": {
        "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092",
        "STREAM_DEDUP_TOPIC_PREFIX": "news.",
    },
    "keySecret": "our-key",
    "secretsAsEnvironment": ["kafka-login"],
    "strimziTopics": True,
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/texts"}},
    "pods": {
        "annotations": {"reloader": "off"},
        "podAnnotations": {"sidecar": "no"},
        "podLabels": {"tier": "data"},
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "data", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "priorityClassName": "high",
        "topologySpreadConstraints": [
            {
                "maxSkew": 2,
                "topologyKey": key,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {}},
            }
            for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
        ],
        "hostAliases": [{"ip": "10.0.0.7", "hostnames": ["broker-0"]}],
        "updateStrategy": {"type": "OnDelete"},
        "extraEnv": [{"name": "SSL_CERT_FILE", "value": "/certificates/ca.crt"}],
        "extraInitContainers": [
            {
                "name": "certificates",
                "image": "registry.example.com/filter",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"]},
                },
                "resources": {
                    "requests": {"cpu": "10m", "memory": "16Mi"},
                    "limits": {"memory": "16Mi"},
                },
            }
        ],
        "extraVolumes": [{"name": "ca", "configMap": {"name": "company-ca"}}],
        "extraVolumeMounts": [{"name": "ca", "mountPath": "/certificates"}],
        "probes": {"startup": {"failureThreshold": 120}},
    },
    "worker": {"replicas": 5, "nodeSelector": {"disk": "none"}},
    "index": {
        "replicas": 3,
        "volume": {"size": "200Gi", "storageClass": "fast"},
        "resources": {"requests": {"memory": "6Gi"}, "limits": {"memory": "6Gi"}},
        "snapshots": {"enabled": True, "size": "400Gi", "storageClass": "slow"},
    },
    "search": {"replicas": 0, "volume": {"size": "500Gi", "storageClass": "slow"}},
    "console": {
        "hosts": ["crawl.example"],
        "path": "/dedup",
        "tokenSecret": "our-token",
        "service": {"type": "LoadBalancer", "annotations": {"lb": "internal"}},
        "ingress": {
            "enabled": True,
            "className": "traefik",
            "pathType": "ImplementationSpecific",
            "tls": [{"hosts": ["crawl.example"], "secretName": "tls"}],
        },
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "gateway", "namespace": "web"}]},
    },
    "networkPolicy": {"egress": [{"ports": [{"protocol": "TCP", "port": 8081}]}]},
    "monitoring": {
        "podMonitor": {
            "enabled": True,
            "labels": {"release": "prometheus"},
            "scrapeTimeout": "9s",
            "relabelings": [{"targetLabel": "cluster", "replacement": "eu"}],
            "metricRelabelings": [{"sourceLabels": ["le"], "regex": "5", "action": "drop"}],
        },
        "rules": {"enabled": True, "handbook": "https://wiki.example/handbook/"},
        "dashboard": {"enabled": True},
    },
    "extraObjects": [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": '{{ include "stream-dedup.fullname" . }}-more',
                "labels": {"app.kubernetes.io/instance": "{{ .Release.Name }}", "team": "crawl"},
            },
        }
    ],
}
# But for what a release sets itself, or what only an overlay has.
NOT_OURS = (
    rules.schema,
    rules.pinned,
    rules.configured,
    rules.keyed,
    rules.referring,
    rules.scaled,
    rules.fenced,
)
HOLDING = [rule for rule in rules.RULES if rule not in NOT_OURS]


@pytest.fixture
def all_on(helm: Path, tmp_path: Path) -> list[Manifest]:
    """Each value set, and each switch on, as a release whose name is not the chart's."""
    (tmp_path / "values.yaml").write_text(json.dumps(ALL_ON))
    done = run(
        helm,
        "template",
        "news",
        *TEMPLATE[2:],
        "--namespace",
        "crawl",
        "--values",
        str(tmp_path / "values.yaml"),
    )
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def test_values_are_where_kubernetes_reads_them(all_on: list[Manifest]) -> None:
    """On every pod, or on that of the role that says otherwise."""
    worker, index = (
        of(all_on, "StatefulSet", "news-stream-dedup-worker"),
        of(all_on, "StatefulSet", "news-stream-dedup-index"),
    )
    search = of(all_on, "StatefulSet", "news-stream-dedup-search")
    assert (worker["spec"]["replicas"], index["spec"]["replicas"], search["spec"]["replicas"]) == (
        5,
        3,
        0,
    )
    (config,) = (
        one
        for one in all_on
        if one["kind"] == "ConfigMap" and "STREAM_DEDUP_TOPIC_PREFIX" in one["data"]
    )
    hosts = config["data"]["STREAM_DEDUP_HTTP_ALLOWED_HOSTS"].split(",")
    assert {"crawl.example", "news-stream-dedup-index-api", "*.news-stream-dedup-index"} <= set(
        hosts
    )
    assert config["data"]["STREAM_DEDUP_CONSOLE_PREFIX"] == "/dedup"

    on_all = ALL_ON["pods"]
    for workload, pod in rules.pods(all_on):
        spec, role = pod["spec"], workload["metadata"]["labels"]["app.kubernetes.io/component"]
        container = spec["containers"][0]
        assert container["image"] == f"registry.example.com/filter@sha256:{'a' * 64}"
        assert container["imagePullPolicy"] == "Always"
        assert container["envFrom"] == [
            {"configMapRef": {"name": config["metadata"]["name"]}},
            {"secretRef": {"name": "kafka-login"}},
        ]
        assert on_all["extraEnv"][0] in container["env"]
        assert on_all["extraVolumeMounts"][0] in container["volumeMounts"]
        assert on_all["extraVolumes"][0] in spec["volumes"]
        assert spec["initContainers"] == on_all["extraInitContainers"]
        for key in (
            "tolerations",
            "affinity",
            "priorityClassName",
            "hostAliases",
            "topologySpreadConstraints",
        ):
            assert spec.get(key) == on_all[key] or (role, key) == (
                "toolbox",
                "topologySpreadConstraints",
            )
        assert spec["nodeSelector"] == {"disk": "none" if role == "worker" else "ssd"}
        assert spec["imagePullSecrets"] == ALL_ON["imagePullSecrets"]
        assert pod["metadata"]["annotations"] == on_all["podAnnotations"]
        assert pod["metadata"]["labels"]["tier"] == "data"
        assert workload["metadata"]["annotations"] == on_all["annotations"]
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["updateStrategy"] == {"type": "OnDelete"}
        if role != "toolbox":
            assert (
                container["startupProbe"]["failureThreshold"],
                container["startupProbe"]["periodSeconds"],
            ) == (120, 5)
    claims = {
        claim["metadata"]["name"]: claim["spec"] for claim in index["spec"]["volumeClaimTemplates"]
    }
    assert {
        name: (one["resources"]["requests"]["storage"], one["storageClassName"])
        for name, one in claims.items()
    } == {
        "index": ("200Gi", "fast"),
        "snapshots": ("400Gi", "slow"),
    }
    (container,) = index["spec"]["template"]["spec"]["containers"]
    assert {"name": "STREAM_DEDUP_SNAPSHOTS", "value": "/snapshots"} in container["env"]
    assert {"name": "snapshots", "mountPath": "/snapshots"} in container["volumeMounts"]
    secrets = {
        volume.get("secret", {}).get("secretName")
        for volume in search["spec"]["template"]["spec"]["volumes"]
    }
    assert {"our-key", "our-token"} <= secrets
    (account,) = (one for one in all_on if one["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"] == ALL_ON["serviceAccount"]["annotations"]
    assert (
        of(all_on, "NetworkPolicy", "news-stream-dedup-others")["spec"]["egress"]
        == ALL_ON["networkPolicy"]["egress"]
    )
    monitor = of(all_on, "PodMonitor", "news-stream-dedup")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = ALL_ON["monitoring"]["podMonitor"]
    assert [endpoint["relabelings"][-1], *endpoint["metricRelabelings"]] == wanted[
        "relabelings"
    ] + wanted["metricRelabelings"]
    assert endpoint["scrapeTimeout"] == "9s"
    assert {"targetLabel": "job", "replacement": "stream-dedup"} in endpoint["relabelings"], (
        "alerts and dashboard look for it"
    )
    assert of(all_on, "Secret", "news-stream-dedup-more")
    topics = {one["metadata"]["name"] for one in all_on if one["kind"] == "KafkaTopic"}
    assert {"documents", "unique", "duplicates", "fingerprints", "verdicts"} <= topics


def test_the_rules_for_manifests_hold_of_the_chart(helm: Path, all_on: list[Manifest]) -> None:
    """With its own values, and with everything on; Kubernetes or an operator takes it, and no name
    is another release's."""
    plain = template(helm)
    for manifests in (plain, all_on):
        known = [one for one in manifests if one["kind"] != "HTTPRoute"]
        assert rules.schema(known) == []
        for rule in HOLDING:
            assert rule(manifests) == [], rule.__name__
    for one in all_on:
        if one["kind"] != "KafkaTopic":
            assert one["metadata"]["name"].startswith("news-stream-dedup"), one["metadata"]
            assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "news"
            assert one["metadata"]["labels"]["team"] == "crawl"
    assert not {(one["kind"], one["metadata"]["name"]) for one in plain} & {
        (one["kind"], one["metadata"]["name"]) for one in all_on if one["kind"] != "KafkaTopic"
    }


def test_a_user_need_not_be_named(helm: Path) -> None:
    """OpenShift gives each namespace users of its own, and refuses others."""
    names = ("runAsUser", "runAsGroup", "fsGroup")
    made = template(
        helm, "--set", ",".join(f"pods.podSecurityContext.{name}=null" for name in names)
    )
    for _, pod in rules.pods(made):
        assert not {*names} & set(pod["spec"]["securityContext"])
        assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_people_come_to_the_console_by_name(all_on: list[Manifest]) -> None:
    ingress, route = (
        of(all_on, "Ingress", "news-stream-dedup-search"),
        of(all_on, "HTTPRoute", "news-stream-dedup-search"),
    )
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("crawl.example", "/dedup")
    service = of(all_on, "Service", path["backend"]["service"]["name"])
    assert (service["spec"]["type"], service["metadata"]["annotations"]) == (
        "LoadBalancer",
        {"lb": "internal"},
    )
    assert path["pathType"] == "ImplementationSpecific"
    assert {port["name"] for port in service["spec"]["ports"]} == {
        path["backend"]["service"]["port"]["name"]
    }
    (way,) = route["spec"]["rules"]
    assert way["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]
    assert route["spec"]["hostnames"] == ["crawl.example"]
    assert way["matches"][0]["path"]["value"] == "/dedup"


def test_keda_scales_the_workers_of_the_release(helm: Path) -> None:
    values = "autoscaling.enabled=true,autoscaling.maxReplicas=48,settings.STREAM_DEDUP_TOPIC_PREFIX=news."
    made = template(helm, "--set", values)
    scaled = of(made, "ScaledObject", "stream-dedup-worker")
    assert rules.schema([scaled]) == []
    trigger = scaled["spec"]["triggers"][0]["metadata"]
    assert (trigger["consumerGroup"], trigger["topic"]) == ("news.stream-dedup", "news.documents")
    assert trigger["lagThreshold"] == "300000"
    assert scaled["spec"]["maxReplicaCount"] == 48
    assert (
        "replicas" not in of(made, "StatefulSet", scaled["spec"]["scaleTargetRef"]["name"])["spec"]
    )


def test_helm_test_asks_the_doctor(helm: Path) -> None:
    """A pod that is none of the toolbox's, and that the policies let reach Kafka and names; under
    any release's name."""
    done = run(helm, "template", "news", *TEMPLATE[2:])
    made = [one for one in yaml.safe_load_all(done.stdout) if one]
    (pod,) = (one for one in made if one["kind"] == "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["command"] == ["stream-dedup", "doctor"]
    assert rules.schema([pod]) == []
    labels = pod["metadata"]["labels"]
    policies = list(rules.of_kind(made, "NetworkPolicy"))
    own = {
        one["metadata"]["name"]
        for one in policies
        if rules.selects(one["spec"]["podSelector"], labels)
    }
    assert {
        f"news-stream-dedup-{name}" for name in ("default-deny", "names", "kafka", "others")
    } == own
    assert not rules.selects(
        of(made, "Deployment", "news-stream-dedup-toolbox")["spec"]["selector"], labels
    )


def test_the_notes_say_what_to_type(helm: Path, tmp_path: Path) -> None:
    """With the names of this release. Helm prints them at an install only, so a template of this
    copy holds their text."""
    chart = tmp_path / "chart"
    shutil.copytree(write_chart.CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text(
        'notes: {{ tpl (.Files.Get "notes.txt") . | quote }}\n'
    )
    only = ("--namespace", "crawl", "--show-only", "templates/notes.yaml")
    done = run(helm, "template", "news", str(chart), *TEMPLATE[3:], *only)
    assert done.returncode == 0, done.stderr
    (notes,) = (one["notes"] for one in yaml.safe_load_all(done.stdout) if "notes" in (one or {}))
    name = "news-stream-dedup"
    for said in (
        f"deployment/{name}-toolbox",
        f"service/{name}-search",
        "helm --namespace crawl test news",
    ):
        assert said in notes


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("workers.replicas=3", "workers"),
        ("worker.nodeSelecter.a=b", "nodeSelecter"),
        ("image.digest=latest", "digest"),
        ("settings.PLAN=blocks", "PLAN"),
        ("worker.replicas=-1", "replicas"),
        ("monitoring.rules.enabled=true", "monitoring.rules.handbook"),
        ("console.ingress.enabled=true", "console.hosts"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Path, values: str, said: str) -> None:
    done = run(helm, *TEMPLATE, "--set", values)
    assert done.returncode != 0
    assert said in done.stderr
