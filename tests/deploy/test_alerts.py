"""Promtool checks when alerts fire; their pages, metrics and the dashboard's metrics exist."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_dedup.indexer.metrics import IndexMetrics
from stream_dedup.search.metrics import SearchMetrics
from stream_dedup.worker.metrics import WorkerMetrics
from tests.deploy.tools import ROOT

FILES = ROOT / "deploy" / "chart" / "files"
RULES = yaml.safe_load((FILES / "alerts.yaml").read_text())
ALERTS = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule
}
RECORDED = {
    rule["record"]: rule for group in RULES["groups"] for rule in group["rules"] if "record" in rule
}
CASES = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())["cases"]
HANDBOOK = (ROOT / "docs" / "handbook.md").read_text()
# Metrics that Prometheus itself and Kubernetes export.
FOREIGN = {
    "up",
    "kube_pod_container_resource_limits",
    "kube_statefulset_replicas",
    "kube_statefulset_status_replicas_ready",
    "kubelet_volume_stats_available_bytes",
    "kubelet_volume_stats_capacity_bytes",
}
# Kubernetes' own metrics know the pod and no filter; in one namespace the names of pods and volumes
# tell filters apart.
BY_POD_OF_KUBERNETES = {
    "StreamDedupIndexMemory",
    "StreamDedupIndexVolume",
    "StreamDedupSearchVolume",
}
METRIC = re.compile(r"\b(?:stream_dedup|process|kube|kubelet|kafka)[a-z0-9_:]*\b|\bup\b")


def exported_metrics() -> set[str]:
    worker, index, search = WorkerMetrics("words:test"), IndexMetrics(), SearchMetrics()
    worker.transactions.labels("committed").inc()
    worker.set_lag("documents", 0, 1)
    worker.unkept.labels("documents").set(0)
    names = set()
    for metrics in (worker, index, search):
        for family in metrics.registry.collect():
            names |= {sample.name for sample in family.samples}
            if family.type == "histogram":
                names |= {f"{family.name}_{end}" for end in ("bucket", "sum", "count")}
    return names


def of_filter(series: list[dict[str, str]], namespace: str, name: str) -> list[dict[str, str]]:
    """Return series as Prometheus has them of one of several filters."""
    labels = f'namespace="{namespace}",filter="{name}"'

    def labelled(selector: str) -> str:
        return (
            f"{selector[:-1]},{labels}}}" if selector.endswith("}") else f"{selector}{{{labels}}}"
        )

    return [{"series": labelled(entry["series"]), "values": entry["values"]} for entry in series]


def run_cases(
    promtool: Path, folder: Path, cases: list[dict[str, Any]], rules: dict[str, Any]
) -> str:
    """Run cases against rules; return promtool's output if any failed.

    Each alert must fire once and name the failing filter, also beside a healthy filter of the same
    or of another namespace; it must stay silent if all filters are healthy.
    """
    tests: dict[str, list[dict[str, Any]]] = {}
    for case in cases:
        firing = f'ALERTS{{alertname="{case["alert"]}",alertstate="firing"}}'
        healthy = of_filter(case["silent"], "staging", "crawl")
        bad = of_filter(case["fires"], "prod", "crawl")
        count, single = f"count({firing})", [{"labels": "{}", "value": 1}]
        by_namespace = f"count by (namespace) ({firing})"
        states = [
            (case["fires"], count, single),
            (bad + healthy, count, single),
            (bad + healthy, by_namespace, [{"labels": '{namespace="prod"}', "value": 1}]),
            (case["silent"], count, []),
            (healthy + of_filter(case["silent"], "prod", "crawl"), count, []),
        ]
        if case["alert"] not in BY_POD_OF_KUBERNETES:
            states.append((bad + of_filter(case["silent"], "prod", "news"), ("count by (filter) "
                                                                            f"({firing})"),
                           [{"labels": '{filter="crawl"}', "value": 1}]))  # fmt: skip
        interval = case.get("every", "1m")
        tests.setdefault(interval, []).extend(
            {
                "interval": interval,
                "input_series": series,
                "promql_expr_test": [
                    {"expr": expression, "eval_time": case["at"], "exp_samples": samples}
                ],
            }
            for series, expression, samples in states
        )
    return run_promtool(promtool, folder, rules, tests)


def run_promtool(
    promtool: Path, folder: Path, rules: dict[str, Any], tests: dict[str, list[dict[str, Any]]]
) -> str:
    """Run tests, a list per interval; return promtool's output for those that failed."""
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    files = []
    for interval, interval_tests in tests.items():
        files.append(folder / f"tests-{interval}.yaml")
        files[-1].write_text(
            yaml.safe_dump(
                {
                    "rule_files": ["rules.yaml"],
                    "evaluation_interval": interval,
                    "tests": interval_tests,
                }
            )
        )
    # promtool limits each query to ten seconds of wall time, which a busy machine can exceed;
    # a wrong rule fails again.
    wrong = dict.fromkeys(files, "")
    for _ in range(2):
        for file in list(wrong):
            command = [str(promtool), "test", "rules", str(file)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            wrong[file] = done.stdout + done.stderr
            if done.returncode == 0:
                del wrong[file]
    return "".join(wrong.values())


@pytest.mark.thorough
def test_each_alert_fires_and_stays_silent(promtool: Path, tmp_path: Path) -> None:
    """Each alert passes its case in `alerts.yaml`; a rule that never fires does not."""
    assert {case["alert"] for case in CASES} == set(ALERTS)

    assert run_cases(promtool, tmp_path, CASES, RULES) == ""
    broken = json.loads(json.dumps(RULES))
    broken["groups"][1]["rules"][0]["expr"] = "vector(0) > 1"
    assert "StreamDedupNoWorker" in run_cases(promtool, tmp_path, CASES[:1], broken)


@pytest.mark.thorough
def test_role_down_fires_for_a_pending_worker(promtool: Path, tmp_path: Path) -> None:
    """A pending worker has no scrape target; kube-state-metrics reports the replicas wanted."""
    workers = 'kube_statefulset_%s{namespace="prod",statefulset="news-stream-dedup-worker"}'
    others = 'kube_statefulset_%s{namespace="prod",statefulset="celery-worker"}'
    firing = 'ALERTS{alertname="StreamDedupRoleDown",alertstate="firing"}'
    label = '{namespace="prod",component="worker"}'
    check = {"expr": f"count by (namespace, component) ({firing})", "eval_time": "70m"}
    tests = [
        {
            "interval": "1m",
            "input_series": [
                {"series": workers % "replicas", "values": "2x80"},
                {"series": workers % "status_replicas_ready", "values": ready},
                {"series": others % "replicas", "values": "2x80"},
                {"series": others % "status_replicas_ready", "values": "0x80"},
            ],
            "promql_expr_test": [check | {"exp_samples": samples}],
        }
        for ready, samples in (
            ("2x20 1x60", [{"labels": label, "value": 1}]),
            ("2x20 1x20 2x40", []),
        )
    ]

    assert run_promtool(promtool, tmp_path, RULES, {"1m": tests}) == ""


@pytest.mark.thorough
def test_lag_is_also_recorded_under_the_name_of_kafka_exporter(
    promtool: Path, tmp_path: Path
) -> None:
    name = 'kafka_consumergroup_lag{consumergroup="stream-dedup",partition="3",topic="documents"}'
    series = 'stream_dedup_consumer_lag_records{topic="documents",partition="3",pod="%s"}'
    check = {
        "expr": "kafka_consumergroup_lag",
        "eval_time": "3m",
        "exp_samples": [{"labels": name, "value": 9}],
    }
    given = [
        {"series": series % "w-0", "values": "7x5"},
        {"series": series % "w-1", "values": "9x5"},
    ]
    tests = [{"interval": "1m", "input_series": given, "promql_expr_test": [check]}]

    assert run_promtool(promtool, tmp_path, RULES, {"1m": tests}) == ""


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_an_alert_has_a_page_in_the_handbook(name: str) -> None:
    """The runbook link leads to the alert's heading, and the section has a command to paste."""
    assert ALERTS[name]["annotations"]["runbook_url"].endswith(f"/#{name.lower()}")
    assert re.search(rf"^#+ {name}$", HANDBOOK, re.MULTILINE)
    section = re.split(rf"^#+ {name}$", HANDBOOK, flags=re.MULTILINE)[1].partition("\n### ")[0]
    assert re.search(r"^\$ (kubectl|helm) ", section, re.MULTILINE), (
        "its page has no command to paste"
    )
    assert ALERTS[name]["labels"]["severity"] in {"warning", "critical"}


def unknown_metrics(expressions: list[str]) -> set[str]:
    bare = [
        re.sub(r'"[^"]*"|\{[^}]*\}|\b(?:by|on)\s*\([^)]*\)', "", expression)
        for expression in expressions
    ]
    return (
        {name for expression in bare for name in METRIC.findall(expression)}
        - exported_metrics()
        - FOREIGN
        - set(RECORDED)
    )


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FILES / "dashboard.json").read_text())
    return found


def test_alerts_and_dashboard_use_metrics_that_exist() -> None:
    """Each metric is exported by a role or by Kubernetes, or recorded by a rule."""
    panels = [
        target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])
    ]
    assert len(panels) >= 12

    assert (
        unknown_metrics([rule["expr"] for rule in (*ALERTS.values(), *RECORDED.values())] + panels)
        == set()
    )
    found = unknown_metrics(['sum(rate(stream_dedup_document_total{verdict="unique"}[5m]))'])
    assert found == {"stream_dedup_document_total"}


def test_dashboard_panels_select_by_namespace_and_filter() -> None:
    """Every panel selects by namespace and filter, so that two filters are not added up."""
    content = dashboard()
    names = [variable["name"] for variable in content["templating"]["list"]]
    expressions = [
        target["expr"] for panel in content["panels"] for target in panel.get("targets", [])
    ]

    assert names == ["source", "namespace", "filter"]
    for expression in expressions:
        metrics = re.findall(r"\b(?:stream_dedup|process)[a-z0-9_:]*(\{[^}]*\})?", expression)
        assert metrics, expression
        assert all(
            'namespace=~"$namespace",filter=~"$filter"' in selector for selector in metrics
        ), expression


def test_dashboard_is_valid_for_grafana() -> None:
    content = dashboard()
    places = set()
    for panel in content["panels"]:
        place = panel["gridPos"]
        cells = {
            (place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])
        }
        assert not cells & places, f"{panel['title']} lies on another panel"
        assert place["x"] + place["w"] <= 24
        places |= cells
        assert panel["title"]
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${source}"}
            assert panel["fieldConfig"]["defaults"]["unit"]
            assert panel["description"]
    assert len({panel["id"] for panel in content["panels"]}) == len(content["panels"])
    found = [
        variable["name"]
        for variable in content["templating"]["list"]
        if variable["type"] == "datasource"
    ]
    assert found == ["source"]
