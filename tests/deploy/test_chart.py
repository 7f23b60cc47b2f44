"""Values of the Helm chart have their effect; tested with the real helm, so `thorough`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_dedup.domain import topics
from stream_dedup.settings.layers import load_settings
from tests import programs
from tests.deploy import rules, tools
from tests.deploy.rules import Manifest

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("helm")]
VALUES = tools.ROOT / "deploy" / "values"


def template(*arguments: str, release: str = "stream-dedup") -> list[Manifest]:
    done = tools.template(*arguments, release=release)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def template_with(values: dict[str, Any], folder: Path, release: str = "news") -> list[Manifest]:
    (folder / "values.yaml").write_text(json.dumps(values))
    return template("--values", str(folder / "values.yaml"), release=release)


def find_manifest(manifests: list[Manifest], kind: str, name: str) -> Any:
    return next(
        manifest
        for manifest in manifests
        if (manifest["kind"], manifest["metadata"]["name"]) == (kind, name)
    )


def test_manifests_are_rendered_from_the_chart() -> None:
    """`deploy/manifests.yaml` is what `make manifests` writes."""
    assert tools.MANIFESTS.read_text(encoding="utf-8") == tools.manifests(), "make manifests"


def test_helm_lint_passes(helm: Path) -> None:
    programs.run([helm, "lint", "--strict", tools.CHART])


ALL_ON = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text())


@pytest.fixture(scope="module")
def all_on(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """Render a release with every value set, every switch on, and a name other than the chart's."""
    return template_with(ALL_ON, tmp_path_factory.mktemp("values"))


def test_values_are_where_kubernetes_reads_them(all_on: list[Manifest]) -> None:
    """Values reach every pod; the values of a role override them."""
    worker = find_manifest(all_on, "StatefulSet", "news-stream-dedup-worker")
    index = find_manifest(all_on, "StatefulSet", "news-stream-dedup-index")
    search = find_manifest(all_on, "StatefulSet", "news-stream-dedup-search")
    found = (worker["spec"]["replicas"], index["spec"]["replicas"], search["spec"]["replicas"])
    assert found == (5, 3, 0)
    config = find_manifest(all_on, "ConfigMap", "news-stream-dedup-settings")
    hosts = config["data"]["STREAM_DEDUP_HTTP_ALLOWED_HOSTS"].split(",")
    names = {"crawl.example", "news-stream-dedup-index-api", "*.news-stream-dedup-index"}
    assert {*names, "news-stream-dedup-search/dedup"} <= set(hosts)

    pod_values = ALL_ON["pods"]
    for workload, pod in rules.pods(all_on):
        spec, role = pod["spec"], workload["metadata"]["labels"]["app.kubernetes.io/component"]
        container = spec["containers"][0]
        assert container["image"] == f"registry.example.com/filter@sha256:{'a' * 64}"
        assert container["imagePullPolicy"] == "Always"
        assert container["envFrom"] == [
            {"configMapRef": {"name": config["metadata"]["name"]}},
            {"secretRef": {"name": "kafka-login"}},
        ]
        assert pod_values["extraEnv"][0] in container["env"]
        assert pod_values["extraVolumeMounts"][0] in container["volumeMounts"]
        assert pod_values["extraVolumes"][0] in spec["volumes"]
        assert spec["initContainers"] == pod_values["extraInitContainers"]
        for key in ("tolerations", "affinity", "priorityClassName", "hostAliases"):
            assert spec.get(key) == pod_values[key]
        if role != "toolbox":
            spread = pod_values["topologySpreadConstraints"]
            assert spec["topologySpreadConstraints"] == spread
        assert spec["nodeSelector"] == {"disk": "none" if role == "worker" else "ssd"}
        assert spec["imagePullSecrets"] == ALL_ON["imagePullSecrets"]
        annotations = pod["metadata"]["annotations"]
        assert annotations["sidecar"] == "no"
        assert annotations.get("prometheus.io/scrape") == (None if role == "toolbox" else "true")
        assert pod["metadata"]["labels"]["tier"] == "data"
        assert workload["metadata"]["annotations"] == pod_values["annotations"]
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["updateStrategy"] == {"type": "OnDelete"}
        if role != "toolbox":
            probe = container["startupProbe"]
            assert (probe["failureThreshold"], probe["periodSeconds"]) == (120, 5)
    claims = {
        claim["metadata"]["name"]: claim["spec"] for claim in index["spec"]["volumeClaimTemplates"]
    }
    stored = {
        name: (claim["resources"]["requests"]["storage"], claim["storageClassName"])
        for name, claim in claims.items()
    }
    assert stored == {"index": ("200Gi", "fast"), "snapshots": ("400Gi", "slow")}
    (container,) = index["spec"]["template"]["spec"]["containers"]
    assert {"name": "STREAM_DEDUP_SNAPSHOTS", "value": "/snapshots"} in container["env"]
    assert {"name": "snapshots", "mountPath": "/snapshots"} in container["volumeMounts"]
    secrets = {
        volume.get("secret", {}).get("secretName")
        for volume in search["spec"]["template"]["spec"]["volumes"]
    }
    assert {"our-key", "our-token"} <= secrets
    (account,) = (manifest for manifest in all_on if manifest["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"] == ALL_ON["serviceAccount"]["annotations"]
    found = find_manifest(all_on, "NetworkPolicy", "news-stream-dedup-others")["spec"]["egress"]
    assert found == ALL_ON["networkPolicy"]["egress"]
    monitor = find_manifest(all_on, "PodMonitor", "news-stream-dedup")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = ALL_ON["monitoring"]["podMonitor"]
    found = [endpoint["relabelings"][-1], *endpoint["metricRelabelings"]]
    assert found == wanted["relabelings"] + wanted["metricRelabelings"]
    assert endpoint["scrapeTimeout"] == "9s"
    assert {"targetLabel": "job", "replacement": "stream-dedup"} in endpoint["relabelings"], (
        "alerts and dashboard look for it"
    )
    assert find_manifest(all_on, "Secret", "news-stream-dedup-more")


# Rules that do not apply to a release with other images, keys and settings.
NOT_OURS = (rules.schema, rules.pinned, rules.configured, rules.keyed, rules.referring)
NOT_OURS += (rules.scaled,)


def test_manifest_rules_hold_for_all_values(
    all_on: list[Manifest], production: list[Manifest]
) -> None:
    """The rules hold with every value set and for the examples; names begin with the release's."""
    for rule in rules.RULES:
        assert rule(production) == [], rule.__name__
    login = template("--values", str(VALUES / "sasl-tls.yaml"))
    for found in (all_on, login):
        assert (
            rules.schema([manifest for manifest in found if manifest["kind"] != "HTTPRoute"]) == []
        )
        for rule in rules.RULES:
            if rule not in NOT_OURS:
                assert rule(found) == [], rule.__name__
    for manifest in all_on:
        assert manifest["metadata"]["name"].startswith("news-stream-dedup"), manifest["metadata"]
        assert manifest["metadata"]["labels"]["app.kubernetes.io/instance"] == "news"
        assert manifest["metadata"]["labels"]["team"] == "crawl"


def test_user_ids_can_be_unset() -> None:
    """User and group ids can be unset, because OpenShift assigns them."""
    names = ("runAsUser", "runAsGroup", "fsGroup")
    made = template("--set", ",".join(f"pods.podSecurityContext.{name}=null" for name in names))
    for _, pod in rules.pods(made):
        assert not {*names} & set(pod["spec"]["securityContext"])
        assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_ingress_and_route_lead_to_the_console(all_on: list[Manifest]) -> None:
    ingress = find_manifest(all_on, "Ingress", "news-stream-dedup-search")
    route = find_manifest(all_on, "HTTPRoute", "news-stream-dedup-search")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("crawl.example", "/dedup")
    service = find_manifest(all_on, "Service", path["backend"]["service"]["name"])
    found = (service["spec"]["type"], service["metadata"]["annotations"])
    assert found == ("LoadBalancer", {"lb": "internal"})
    assert path["pathType"] == "ImplementationSpecific"
    found = {port["name"] for port in service["spec"]["ports"]}
    assert found == {path["backend"]["service"]["port"]["name"]}
    (route_rule,) = route["spec"]["rules"]
    assert route_rule["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]
    assert route["spec"]["hostnames"] == ["crawl.example"]
    assert route_rule["matches"][0]["path"]["value"] == "/dedup"


NAMES: list[dict[str, Any]] = [
    {},
    {"TOPIC_PREFIX": "news"},
    {"TOPIC_PREFIX": "news."},
    {"TOPIC_PREFIX": "news-"},
    {"TOPIC_PREFIX": "news", "MODE": "shadow"},
    {"MODE": "shadow"},
    {"MODE": "shadow", "GROUP": "crawl-shadow"},
    {"TOPIC_PREFIX": "a.b", "GROUP": "crawl", "DOCUMENTS": "pages", "DEAD_LETTERS": "bad"},
]


@pytest.mark.parametrize("given", NAMES, ids=lambda row: ",".join(map(str, row.values())) or "none")
def test_topics_and_groups_have_the_names_that_the_product_uses(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """KEDA's trigger, Strimzi's topics and ACLs use the product's names, also in shadow mode."""
    settings = {f"STREAM_DEDUP_{name}": value for name, value in given.items()}
    found = template_with(
        {"settings": settings, "strimzi": {"cluster": "kafka"}, "autoscaling": {"enabled": True}},
        tmp_path,
    )
    servers = {"STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"}
    product = load_settings({}, None, environ=servers | settings)
    names = {kind: product.topic_names.named(kind) for kind in topics.ALL}

    trigger = find_manifest(found, "ScaledObject", "news-stream-dedup-worker")["spec"]["triggers"][
        0
    ]
    assert trigger["metadata"]["topic"] == names["documents"]
    assert trigger["metadata"]["consumerGroup"] == product.group
    made = {
        manifest["metadata"]["name"].removeprefix("news-stream-dedup-"): manifest["spec"][
            "topicName"
        ]
        for manifest in found
        if manifest["kind"] == "KafkaTopic"
    }
    assert made == names
    for user in (manifest for manifest in found if manifest["kind"] == "KafkaUser"):
        for acl in user["spec"]["authorization"]["acls"]:
            resource = acl["resource"]
            if resource["type"] == "topic":
                assert resource["name"] in names.values()
            elif resource["name"] != "crawler":
                assert resource["name"].startswith(product.group)


def test_keda_uses_the_configured_bootstrap_servers(tmp_path: Path) -> None:
    """KEDA uses the address of its values, else Strimzi's full name, else that of the settings."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"autoscaling": {"bootstrapServers": "kafka.data.svc:9092"}}, "kafka.data.svc:9092"),
        ({"strimzi": {"cluster": "main"}}, "main-kafka-bootstrap.stream-dedup.svc:9093"),
        ({"settings": {"STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": "a.example:1"}}, "a.example:1"),
    ]
    for values, address in cases:
        autoscaling = {"enabled": True, "maxReplicas": 48} | values.pop("autoscaling", {})
        found = template_with(values | {"autoscaling": autoscaling}, tmp_path)
        scaled = find_manifest(found, "ScaledObject", "news-stream-dedup-worker")["spec"]
        assert scaled["triggers"][0]["metadata"]["bootstrapServers"] == address
        assert scaled["triggers"][0]["metadata"]["lagThreshold"] == "300000"
        assert scaled["maxReplicaCount"] == 48
        assert (
            "replicas"
            not in find_manifest(found, "StatefulSet", "news-stream-dedup-worker")["spec"]
        )


def test_strimzi_topics_and_users_follow_the_values(tmp_path: Path) -> None:
    """Single-partition topics keep one partition; the pods log in as the users of this release."""
    strimzi = {"cluster": "main", "partitions": 48, "replicas": 1, "minInsyncReplicas": 1}
    found = template_with({"strimzi": strimzi}, tmp_path)
    declared = {topic.kind: topic.partitions for topic in topics.read_topics()}
    for manifest in (manifest for manifest in found if manifest["kind"] == "KafkaTopic"):
        kind = manifest["metadata"]["name"].removeprefix("news-stream-dedup-")
        assert manifest["spec"]["partitions"] == (1 if declared[kind] == 1 else 48)
        assert (
            manifest["spec"]["replicas"] == manifest["spec"]["config"]["min.insync.replicas"] == 1
        )
        assert manifest["metadata"]["labels"]["strimzi.io/cluster"] == "main"
    users = {manifest["metadata"]["name"] for manifest in found if manifest["kind"] == "KafkaUser"}
    for _, pod in rules.pods(found):
        environment = {
            entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]
        }
        user = environment["STREAM_DEDUP_KAFKA_SASL_USERNAME"]
        secrets = {
            volume["secret"]["secretName"]
            for volume in pod["spec"]["volumes"]
            if "secret" in volume
        }
        assert user in users & secrets
        assert "main-cluster-ca-cert" in secrets


def test_settings_can_be_text_numbers_or_booleans(tmp_path: Path) -> None:
    settings = {"MEMORY": 30000000, "SIMILARITY": 0.95, "ALLOW_BYPASS": True}
    prefixed = {f"STREAM_DEDUP_{name}": value for name, value in settings.items()}
    found = template_with({"settings": prefixed}, tmp_path)
    data = find_manifest(found, "ConfigMap", "news-stream-dedup-settings")["data"]
    assert [data[name] for name in prefixed] == ["30000000", "0.95", "true"]


def test_a_change_of_settings_restarts_pods_and_deletes_no_config_map(tmp_path: Path) -> None:
    """A pod of the previous revision finds its ConfigMap when it restarts."""
    sums = []
    for similarity in (0.9, 0.95):
        found = template_with({"settings": {"STREAM_DEDUP_SIMILARITY": similarity}}, tmp_path)
        (name,) = {
            manifest["metadata"]["name"] for manifest in found if manifest["kind"] == "ConfigMap"
        }
        assert name == "news-stream-dedup-settings"
        sums.append(
            {pod["metadata"]["annotations"]["checksum/settings"] for _, pod in rules.pods(found)}
        )
    assert len(sums[0]) == len(sums[1]) == 1
    assert sums[0] != sums[1]


def test_scrape_job_of_the_readme_is_valid(promtool: Path, tmp_path: Path) -> None:
    """The scrape job sets the labels that the alerts use."""
    page = (tools.ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    # Debian's build has no service discovery for Kubernetes.
    known = block.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
    (tmp_path / "prometheus.yaml").write_text(known)
    programs.run([promtool, "check", "config", "--syntax-only", tmp_path / "prometheus.yaml"])
    (job,) = yaml.safe_load(block)["scrape_configs"]
    assert job["job_name"] == "stream-dedup"
    expected = {relabeling.get("target_label") for relabeling in job["relabel_configs"]}
    assert {"component", "filter", "namespace", "pod"} <= expected


def test_helm_test_runs_doctor() -> None:
    """The test pod is not part of the toolbox, and policies allow it Kafka and DNS."""
    made = template(release="news")
    (pod,) = (manifest for manifest in made if manifest["kind"] == "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["command"] == ["stream-dedup", "doctor"]
    assert rules.schema([pod]) == []
    labels = pod["metadata"]["labels"]
    policies = list(rules.of_kind(made, "NetworkPolicy"))
    applied = {
        policy["metadata"]["name"]
        for policy in policies
        if rules.selects(policy["spec"]["podSelector"], labels)
    }
    found = {f"news-stream-dedup-{name}" for name in ("default-deny", "names", "kafka", "others")}
    assert found == applied
    assert not rules.selects(
        find_manifest(made, "Deployment", "news-stream-dedup-toolbox")["spec"]["selector"], labels
    )


def test_notes_contain_the_commands_to_run(helm: Path, tmp_path: Path) -> None:
    """Helm prints notes only at an install, so a template in this copy renders them."""
    chart = tmp_path / "chart"
    shutil.copytree(tools.CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text(
        'notes: {{ tpl (.Files.Get "notes.txt") . | quote }}\n'
    )
    only = ("--namespace", "crawl", "--kube-version", "1.35.0", "--show-only")
    done = programs.run([helm, "template", "news", chart, *only, "templates/notes.yaml"])
    (notes,) = (
        manifest["notes"]
        for manifest in yaml.safe_load_all(done.stdout)
        if "notes" in (manifest or {})
    )
    name = "news-stream-dedup"
    for text in (
        f"deployment/{name}-toolbox",
        f"service/{name}-search",
        "helm --namespace crawl test news",
    ):
        assert text in notes


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("workers.replicas=3", "workers"),
        ("worker.nodeSelecter.a=b", "nodeSelecter"),
        ("worker.volume.size=3Gi", "volume"),
        ("image.digest=latest", "digest"),
        ("settings.PLAN=blocks", "PLAN"),
        ("settings.STREAM_DEDUP_PLAN.a=b", "PLAN"),
        ("worker.replicas=-1", "replicas"),
        ("monitoring.rules.enabled=true", "monitoring.rules.handbook"),
        ("console.ingress.enabled=true", "console.hosts"),
    ],
)
def test_the_error_names_the_wrong_value(values: str, text: str) -> None:
    done = tools.template("--set", values)
    assert done.returncode != 0
    assert text in done.stderr
