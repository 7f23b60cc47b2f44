"""The Helm chart: its values do what they say, by the real helm; so the tests are `thorough`."""

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
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def template_with(values: dict[str, Any], folder: Path, release: str = "news") -> list[Manifest]:
    (folder / "values.yaml").write_text(json.dumps(values))
    return template("--values", str(folder / "values.yaml"), release=release)


def of(manifests: list[Manifest], kind: str, name: str) -> Any:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


def test_the_manifests_are_the_chart_s() -> None:
    """A change of the chart without `make manifests` is noticed."""
    assert tools.MANIFESTS.read_text(encoding="utf-8") == tools.manifests(), "make manifests"


def test_helm_lint_passes(helm: Path) -> None:
    programs.run([helm, "lint", "--strict", tools.CHART])


ALL_ON = yaml.safe_load((Path(__file__).parent / "values.yaml").read_text())


@pytest.fixture(scope="module")
def all_on(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """Each value set, and each switch on, as a release whose name is not the chart's."""
    return template_with(ALL_ON, tmp_path_factory.mktemp("values"))


def test_values_are_where_kubernetes_reads_them(all_on: list[Manifest]) -> None:
    """On every pod, or on that of the role that says otherwise."""
    worker = of(all_on, "StatefulSet", "news-stream-dedup-worker")
    index = of(all_on, "StatefulSet", "news-stream-dedup-index")
    search = of(all_on, "StatefulSet", "news-stream-dedup-search")
    found = (worker["spec"]["replicas"], index["spec"]["replicas"], search["spec"]["replicas"])
    assert found == (5, 3, 0)
    config = of(all_on, "ConfigMap", "news-stream-dedup-settings")
    hosts = config["data"]["STREAM_DEDUP_HTTP_ALLOWED_HOSTS"].split(",")
    names = {"crawl.example", "news-stream-dedup-index-api", "*.news-stream-dedup-index"}
    assert {*names, "news-stream-dedup-search/dedup"} <= set(hosts)

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
        for key in ("tolerations", "affinity", "priorityClassName", "hostAliases"):
            assert spec.get(key) == on_all[key]
        if role != "toolbox":
            spread = on_all["topologySpreadConstraints"]
            assert spec["topologySpreadConstraints"] == spread
        assert spec["nodeSelector"] == {"disk": "none" if role == "worker" else "ssd"}
        assert spec["imagePullSecrets"] == ALL_ON["imagePullSecrets"]
        given = pod["metadata"]["annotations"]
        assert given["sidecar"] == "no"
        assert given.get("prometheus.io/scrape") == (None if role == "toolbox" else "true")
        assert pod["metadata"]["labels"]["tier"] == "data"
        assert workload["metadata"]["annotations"] == on_all["annotations"]
        if workload["kind"] == "StatefulSet":
            assert workload["spec"]["updateStrategy"] == {"type": "OnDelete"}
        if role != "toolbox":
            probe = container["startupProbe"]
            assert (probe["failureThreshold"], probe["periodSeconds"]) == (120, 5)
    claims = {
        claim["metadata"]["name"]: claim["spec"] for claim in index["spec"]["volumeClaimTemplates"]
    }
    stored = {
        name: (one["resources"]["requests"]["storage"], one["storageClassName"])
        for name, one in claims.items()
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
    (account,) = (one for one in all_on if one["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"] == ALL_ON["serviceAccount"]["annotations"]
    found = of(all_on, "NetworkPolicy", "news-stream-dedup-others")["spec"]["egress"]
    assert found == ALL_ON["networkPolicy"]["egress"]
    monitor = of(all_on, "PodMonitor", "news-stream-dedup")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    wanted = ALL_ON["monitoring"]["podMonitor"]
    found = [endpoint["relabelings"][-1], *endpoint["metricRelabelings"]]
    assert found == wanted["relabelings"] + wanted["metricRelabelings"]
    assert endpoint["scrapeTimeout"] == "9s"
    assert {"targetLabel": "job", "replacement": "stream-dedup"} in endpoint["relabelings"], (
        "alerts and dashboard look for it"
    )
    assert of(all_on, "Secret", "news-stream-dedup-more")


# But for what a release sets itself.
NOT_OURS = (rules.schema, rules.pinned, rules.configured, rules.keyed, rules.referring)
NOT_OURS += (rules.scaled,)


def test_the_rules_for_manifests_hold_of_all_values(
    all_on: list[Manifest], production: list[Manifest]
) -> None:
    """With everything on, and with the examples; no name is another release's."""
    for rule in rules.RULES:
        assert rule(production) == [], rule.__name__
    login = template("--values", str(VALUES / "sasl-tls.yaml"))
    for found in (all_on, login):
        assert rules.schema([one for one in found if one["kind"] != "HTTPRoute"]) == []
        for rule in rules.RULES:
            if rule not in NOT_OURS:
                assert rule(found) == [], rule.__name__
    for one in all_on:
        assert one["metadata"]["name"].startswith("news-stream-dedup"), one["metadata"]
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "news"
        assert one["metadata"]["labels"]["team"] == "crawl"


def test_a_user_need_not_be_named() -> None:
    """OpenShift gives each namespace users of its own, and refuses others."""
    names = ("runAsUser", "runAsGroup", "fsGroup")
    made = template("--set", ",".join(f"pods.podSecurityContext.{name}=null" for name in names))
    for _, pod in rules.pods(made):
        assert not {*names} & set(pod["spec"]["securityContext"])
        assert pod["spec"]["securityContext"]["runAsNonRoot"]


def test_people_come_to_the_console_by_name(all_on: list[Manifest]) -> None:
    ingress = of(all_on, "Ingress", "news-stream-dedup-search")
    route = of(all_on, "HTTPRoute", "news-stream-dedup-search")
    (rule,) = ingress["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    assert (rule["host"], path["path"]) == ("crawl.example", "/dedup")
    service = of(all_on, "Service", path["backend"]["service"]["name"])
    found = (service["spec"]["type"], service["metadata"]["annotations"])
    assert found == ("LoadBalancer", {"lb": "internal"})
    assert path["pathType"] == "ImplementationSpecific"
    found = {port["name"] for port in service["spec"]["ports"]}
    assert found == {path["backend"]["service"]["port"]["name"]}
    (way,) = route["spec"]["rules"]
    assert way["backendRefs"] == [
        {"name": service["metadata"]["name"], "port": service["spec"]["ports"][0]["port"]}
    ]
    assert route["spec"]["hostnames"] == ["crawl.example"]
    assert way["matches"][0]["path"]["value"] == "/dedup"


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


@pytest.mark.parametrize("given", NAMES, ids=lambda one: ",".join(map(str, one.values())) or "none")
def test_names_of_topics_and_groups_are_the_product_s(
    given: dict[str, Any], tmp_path: Path
) -> None:
    """KEDA's trigger, Strimzi's topics and users' rights, also in shadow mode."""
    settings = {f"STREAM_DEDUP_{name}": value for name, value in given.items()}
    found = template_with(
        {"settings": settings, "strimzi": {"cluster": "kafka"}, "autoscaling": {"enabled": True}},
        tmp_path,
    )
    servers = {"STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"}
    product = load_settings({}, None, environ=servers | settings)
    names = {kind: product.topic_names.named(kind) for kind in topics.ALL}

    trigger = of(found, "ScaledObject", "news-stream-dedup-worker")["spec"]["triggers"][0]
    assert trigger["metadata"]["topic"] == names["documents"]
    assert trigger["metadata"]["consumerGroup"] == product.group
    made = {
        one["metadata"]["name"].removeprefix("news-stream-dedup-"): one["spec"]["topicName"]
        for one in found
        if one["kind"] == "KafkaTopic"
    }
    assert made == names
    for user in (one for one in found if one["kind"] == "KafkaUser"):
        for acl in user["spec"]["authorization"]["acls"]:
            resource = acl["resource"]
            if resource["type"] == "topic":
                assert resource["name"] in names.values()
            elif resource["name"] != "crawler":
                assert resource["name"].startswith(product.group)


def test_keda_asks_kafka_by_an_address_of_its_own(tmp_path: Path) -> None:
    """The given one; without it Strimzi's by its whole name, or that of the settings."""
    cases: list[tuple[dict[str, Any], str]] = [
        ({"autoscaling": {"bootstrapServers": "kafka.data.svc:9092"}}, "kafka.data.svc:9092"),
        ({"strimzi": {"cluster": "main"}}, "main-kafka-bootstrap.stream-dedup.svc:9093"),
        ({"settings": {"STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": "a.example:1"}}, "a.example:1"),
    ]
    for values, address in cases:
        autoscaling = {"enabled": True, "maxReplicas": 48} | values.pop("autoscaling", {})
        found = template_with(values | {"autoscaling": autoscaling}, tmp_path)
        scaled = of(found, "ScaledObject", "news-stream-dedup-worker")["spec"]
        assert scaled["triggers"][0]["metadata"]["bootstrapServers"] == address
        assert scaled["triggers"][0]["metadata"]["lagThreshold"] == "300000"
        assert scaled["maxReplicaCount"] == 48
        assert "replicas" not in of(found, "StatefulSet", "news-stream-dedup-worker")["spec"]


def test_strimzi_topics_and_users_follow_the_values(tmp_path: Path) -> None:
    """What must have one partition keeps it; the pods log in as the users of this release."""
    strimzi = {"cluster": "main", "partitions": 48, "replicas": 1, "minInsyncReplicas": 1}
    found = template_with({"strimzi": strimzi}, tmp_path)
    declared = {topic.kind: topic.partitions for topic in topics.read_topics()}
    for one in (one for one in found if one["kind"] == "KafkaTopic"):
        kind = one["metadata"]["name"].removeprefix("news-stream-dedup-")
        assert one["spec"]["partitions"] == (1 if declared[kind] == 1 else 48)
        assert one["spec"]["replicas"] == one["spec"]["config"]["min.insync.replicas"] == 1
        assert one["metadata"]["labels"]["strimzi.io/cluster"] == "main"
    users = {one["metadata"]["name"] for one in found if one["kind"] == "KafkaUser"}
    for _, pod in rules.pods(found):
        environment = {one["name"]: one.get("value") for one in pod["spec"]["containers"][0]["env"]}
        user = environment["STREAM_DEDUP_KAFKA_SASL_USERNAME"]
        secrets = {one["secret"]["secretName"] for one in pod["spec"]["volumes"] if "secret" in one}
        assert user in users & secrets
        assert "main-cluster-ca-cert" in secrets


def test_settings_are_text_numbers_or_booleans(tmp_path: Path) -> None:
    settings = {"MEMORY": 30000000, "SIMILARITY": 0.95, "ALLOW_BYPASS": True}
    named = {f"STREAM_DEDUP_{name}": value for name, value in settings.items()}
    found = template_with({"settings": named}, tmp_path)
    data = of(found, "ConfigMap", "news-stream-dedup-settings")["data"]
    assert [data[name] for name in named] == ["30000000", "0.95", "true"]


def test_a_change_of_settings_restarts_pods_and_deletes_no_config_map(tmp_path: Path) -> None:
    """A pod of the revision before finds its ConfigMap when it is started again."""
    sums = []
    for similarity in (0.9, 0.95):
        found = template_with({"settings": {"STREAM_DEDUP_SIMILARITY": similarity}}, tmp_path)
        (name,) = {one["metadata"]["name"] for one in found if one["kind"] == "ConfigMap"}
        assert name == "news-stream-dedup-settings"
        sums.append(
            {pod["metadata"]["annotations"]["checksum/settings"] for _, pod in rules.pods(found)}
        )
    assert len(sums[0]) == len(sums[1]) == 1
    assert sums[0] != sums[1]


def test_prometheus_takes_the_scrape_job_of_the_readme(promtool: Path, tmp_path: Path) -> None:
    """It finds pods by the annotations, and makes the labels that the rules are written for."""
    page = (tools.ROOT / "deploy" / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(scrape_configs:.*?)```", page, re.DOTALL)
    # Debian's build does not know Kubernetes.
    known = block.replace("kubernetes_sd_configs: [{role: pod}]", "static_configs: []")
    (tmp_path / "prometheus.yaml").write_text(known)
    programs.run([promtool, "check", "config", "--syntax-only", tmp_path / "prometheus.yaml"])
    (job,) = yaml.safe_load(block)["scrape_configs"]
    assert job["job_name"] == "stream-dedup"
    expected = {one.get("target_label") for one in job["relabel_configs"]}
    assert {"component", "filter", "namespace", "pod"} <= expected


def test_helm_test_asks_the_doctor() -> None:
    """The policies let a pod that is none of the toolbox's reach Kafka and names."""
    made = template(release="news")
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
    found = {f"news-stream-dedup-{name}" for name in ("default-deny", "names", "kafka", "others")}
    assert found == own
    assert not rules.selects(
        of(made, "Deployment", "news-stream-dedup-toolbox")["spec"]["selector"], labels
    )


def test_the_notes_say_what_to_type(helm: Path, tmp_path: Path) -> None:
    """Helm prints them at an install only, so a template of this copy holds their text."""
    chart = tmp_path / "chart"
    shutil.copytree(tools.CHART, chart)
    (chart / "templates" / "NOTES.txt").rename(chart / "notes.txt")
    (chart / "templates" / "notes.yaml").write_text(
        'notes: {{ tpl (.Files.Get "notes.txt") . | quote }}\n'
    )
    only = ("--namespace", "crawl", "--kube-version", "1.35.0", "--show-only")
    done = programs.run([helm, "template", "news", chart, *only, "templates/notes.yaml"])
    (notes,) = (one["notes"] for one in yaml.safe_load_all(done.stdout) if "notes" in (one or {}))
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
def test_a_wrong_value_is_refused_by_name(values: str, text: str) -> None:
    done = tools.template("--set", values)
    assert done.returncode != 0
    assert text in done.stderr
