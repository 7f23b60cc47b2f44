"""The Helm chart: it is what the base is, and its values do what they say. Rendered and linted by the real helm."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_dedup.ground.version import __version__
from tests.deploy import rules, tools, write_chart
from tests.deploy.conftest import _or_skip
from tests.deploy.rules import Manifest

TEMPLATE = ("template", "filter", str(write_chart.CHART), "--kube-version", "1.35.0")


@pytest.fixture(scope="session")
def helm() -> Path:
    """The real helm."""
    return _or_skip(tools.helm)


def run(helm: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(helm), *arguments], capture_output=True, text=True, timeout=60, check=False)


def template(helm: Path, *arguments: str) -> list[Manifest]:
    done = run(helm, *TEMPLATE, *arguments)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def in_bytes(manifests: list[Manifest]) -> str:
    """Return manifests in an order and with the name of the settings that both tools would agree on."""
    (config,) = (one["metadata"]["name"] for one in manifests if one["kind"] == "ConfigMap")
    ordered = sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"]))
    return yaml.safe_dump_all(ordered, sort_keys=True).replace(config, "settings-by-name")


def of(manifests: list[Manifest], kind: str, name: str) -> Any:
    return next(one for one in manifests if (one["kind"], one["metadata"]["name"]) == (kind, name))


def test_the_templates_are_those_that_the_script_makes(kustomize: Path) -> None:
    """A change of the base without `make deploy-chart` is seen."""
    del kustomize
    there = {path.name: path.read_text() for path in (write_chart.CHART / "templates").glob("*.yaml")}
    assert there == write_chart.templates(), "run: make deploy-chart"
    values = yaml.safe_load((write_chart.CHART / "values.yaml").read_text())
    assert values["settings"] == write_chart.default_settings()
    assert yaml.safe_load((write_chart.CHART / "Chart.yaml").read_text())["appVersion"] == __version__


@pytest.mark.long
def test_the_chart_is_the_base(helm: Path) -> None:
    """With its own values it gives what kustomize gives, byte for byte but for the hash in the settings' name."""
    base = list(yaml.safe_load_all(tools.render(write_chart.ROOT / "deploy" / "base")))
    assert in_bytes(template(helm)) == in_bytes(base)


@pytest.mark.long
def test_helm_finds_nothing_to_complain_of(helm: Path) -> None:
    done = run(helm, "lint", "--strict", str(write_chart.CHART))
    assert done.returncode == 0, done.stdout


@pytest.mark.long
def test_values_do_what_they_say(helm: Path, tmp_path: Path) -> None:
    """Each value that an operator sets is where Kubernetes reads it, and the rules for manifests still hold."""
    values = {
        "image": {"repository": "registry.example.com/filter", "digest": f"sha256:{'a' * 64}"},
        "settings": {"STREAM_DEDUP_PLAN": "classic", "STREAM_DEDUP_TOPIC_PREFIX": "crawl."},
        "keySecret": "our-key",
        "secretsAsEnvironment": ["kafka-login"],
        "strimziTopics": True,
        "worker": {"replicas": 5},
        "index": {
            "replicas": 2,
            "volume": {"size": "200Gi", "storageClass": "fast"},
            "resources": {"requests": {"memory": "6Gi"}, "limits": {"memory": "6Gi"}},
        },
        "search": {"replicas": 0, "volume": {"size": "500Gi", "storageClass": "slow"}},
    }
    (tmp_path / "values.yaml").write_text(json.dumps(values))
    plain, made = template(helm), template(helm, "--values", str(tmp_path / "values.yaml"))

    worker, index = of(made, "StatefulSet", "stream-dedup-worker"), of(made, "StatefulSet", "stream-dedup-index")
    search = of(made, "StatefulSet", "stream-dedup-search")
    assert (worker["spec"]["replicas"], index["spec"]["replicas"], search["spec"]["replicas"]) == (5, 2, 0)
    pod = worker["spec"]["template"]["spec"]
    assert pod["containers"][0]["image"] == f"registry.example.com/filter@sha256:{'a' * 64}"
    (config,) = (one for one in made if one["kind"] == "ConfigMap")
    assert config["data"]["STREAM_DEDUP_PLAN"] == "classic"
    assert config["metadata"]["name"] not in {one["metadata"]["name"] for one in plain}
    assert pod["containers"][0]["envFrom"] == [
        {"configMapRef": {"name": config["metadata"]["name"]}},
        {"secretRef": {"name": "kafka-login"}},
    ]
    assert "our-key" in {volume.get("secret", {}).get("secretName") for volume in pod["volumes"]}
    for one, size, storage_class in ((index, "200Gi", "fast"), (search, "500Gi", "slow")):
        (claim,) = (claim["spec"] for claim in one["spec"]["volumeClaimTemplates"])
        assert (claim["resources"]["requests"]["storage"], claim["storageClassName"]) == (size, storage_class)
    assert index["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == "6Gi"
    topics = {one["metadata"]["name"] for one in made if one["kind"] == "KafkaTopic"}
    assert {"documents", "unique", "duplicates", "fingerprints", "verdicts"} <= topics
    for rule in (rules.restricted, rules.sealed, rules.labelled, rules.probed, rules.sized, rules.joined, rules.drained):
        assert rule(made) == rule(plain) == [], rule.__name__


@pytest.mark.long
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ("workers.replicas=3", "workers"),
        ("image.digest=latest", "digest"),
        ("settings.PLAN=blocks", "PLAN"),
        ("worker.replicas=-1", "replicas"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Path, values: str, said: str) -> None:
    done = run(helm, *TEMPLATE, "--set", values)
    assert done.returncode != 0
    assert said in done.stderr
