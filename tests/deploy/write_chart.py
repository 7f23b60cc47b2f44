"""Write the Helm chart from the Kustomize base: `make deploy-chart`.

The manifests are stated once, in `deploy/base` and `topics/`. This script renders them, puts an expression of Helm in each
place that `VALUES` names, and writes `deploy/chart/templates`. With the chart's own values `helm template` gives what
`kustomize build` gives, field by field; `test_chart.py` holds that. `Chart.yaml`, `values.yaml` and its schema are written
by hand.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import ROOT, render

CHART = ROOT / "deploy" / "chart"
_HEAD = "{{- /* Made by `make deploy-chart` from deploy/base and topics/; do not edit by hand. */ -}}\n"
_CONFIG_MAP = "stream-dedup"
_ROLES = {"worker": "StatefulSet", "index": "StatefulSet", "insights": "Deployment", "search": "StatefulSet"}
_STORED = ("index", "search")
_CONTAINER = "spec/template/spec/containers/0"

# (kind, name, path): the expression that stands there. `toYaml` marks a block, whose indent is that of its place.
VALUES: dict[tuple[str, str, str], str] = {
    **{(kind, f"stream-dedup-{role}", "spec/replicas"): f".Values.{role}.replicas" for role, kind in _ROLES.items()},
    **{
        (kind, f"stream-dedup-{role}", f"{_CONTAINER}/resources"): f"toYaml .Values.{role}.resources"
        for role, kind in _ROLES.items()
    },
    **{
        ("StatefulSet", f"stream-dedup-{role}", "spec/volumeClaimTemplates/0/spec/resources/requests/storage"): (
            f".Values.{role}.volume.size"
        )
        for role in _STORED
    },
}
_TOPIC_NAMES = {"documents", "unique", "duplicates", "dlq.documents"}


def placed(manifest: dict[str, Any]) -> str:
    """Return the template of one manifest: its YAML with expressions where values stand."""
    kind, name = manifest["kind"], manifest["metadata"]["name"]
    expressions: dict[str, str] = {}

    def mark(expression: str) -> str:
        token = f"PLACE{len(expressions)}PLACE"
        expressions[token] = expression
        return token

    if kind in {"StatefulSet", "Deployment", "Pod"}:
        pod = manifest["spec"] if kind == "Pod" else manifest["spec"]["template"]["spec"]
        for container in pod["containers"]:
            container["image"] = mark('include "stream-dedup.image" .')
            for source in container.get("envFrom", ()):
                source["configMapRef"]["name"] = mark('include "stream-dedup.config" .')
            if "envFrom" in container:
                container["envFrom"].append(mark("with .Values.secretsAsEnvironment"))
        for volume in pod.get("volumes", ()):
            if "secret" in volume and volume["secret"]["secretName"] == "stream-dedup-key":
                volume["secret"]["secretName"] = mark(".Values.keySecret")
    if kind == "ConfigMap":
        manifest["metadata"]["name"] = mark('include "stream-dedup.config" .')
        manifest["data"] = mark("toYaml .Values.settings")
    for (of, called, path), expression in VALUES.items():
        if (of, called) == (kind, name):
            *steps, last = path.split("/")
            place: Any = manifest
            for step in steps:
                place = place[int(step) if step.isdigit() else step]
            if last in place:
                place[last] = mark(expression)
    role = name.removeprefix("stream-dedup-")
    if kind == "StatefulSet" and role in _STORED:
        manifest["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] = mark(
            f"with .Values.{role}.volume.storageClass"
        )
    text = yaml.safe_dump(manifest, sort_keys=False, width=1000)
    return "".join(_line(line, expressions) for line in text.splitlines(keepends=True))


def _line(line: str, expressions: dict[str, str]) -> str:
    """Return a line with the expression of its place."""
    found = re.search(r"PLACE\d+PLACE", line)
    if found is None:
        # What Helm would take for an expression of its own stands as text.
        return re.sub(r"\{\{", '{{ "{{" }}', line)
    expression = expressions[found.group()]
    indent = len(line) - len(line.lstrip())
    if expression == "with .Values.secretsAsEnvironment":
        item = f"{' ' * indent}- secretRef:\n{' ' * indent}    name: {{{{ . }}}}\n"
        return f"{{{{- range .Values.secretsAsEnvironment }}}}\n{item}{{{{- end }}}}\n"
    if expression.startswith("with "):
        return f"{{{{- {expression} }}}}\n{line.replace(found.group(), '{{ . | quote }}')}{{{{- end }}}}\n"
    if expression.startswith("toYaml "):
        key = line[: found.start()].rstrip()
        return f"{key}\n{' ' * (indent + 2)}{{{{- {expression} | nindent {indent + 2} }}}}\n"
    return line.replace(found.group(), f"{{{{ {expression} }}}}")


def templates() -> dict[str, str]:
    """Return the text of each template, by its file's name."""
    made: dict[str, list[str]] = {}
    for manifest in yaml.safe_load_all(render(ROOT / "deploy" / "base")):
        if manifest["kind"] == "ConfigMap":
            manifest["metadata"]["name"] = _CONFIG_MAP
        component = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component", "common")
        made.setdefault(f"{component}.yaml", []).append(placed(manifest))
    files = {name: _HEAD + "---\n".join(parts) for name, parts in sorted(made.items())}
    topics = [placed(manifest) for manifest in yaml.safe_load_all(render(ROOT / "topics")) if manifest["kind"] == "KafkaTopic"]
    files["topics.yaml"] = _HEAD + "{{- if .Values.strimziTopics }}\n" + "---\n".join(topics) + "{{- end }}\n"
    return files


def default_settings() -> dict[str, str]:
    """Return the settings of the base, which `values.yaml` repeats."""
    (config,) = (one for one in yaml.safe_load_all(render(ROOT / "deploy" / "base")) if one["kind"] == "ConfigMap")
    data: dict[str, str] = config["data"]
    return data


def main(folder: Path = CHART / "templates") -> None:
    """Write the templates; those that no manifest makes any more go."""
    files = templates()
    for path in folder.glob("*.yaml"):
        if path.name not in files:
            path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
