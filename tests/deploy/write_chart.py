"""Write the Helm chart from the Kustomize base: `make deploy-chart`.

The manifests are stated once, in `deploy/base`, `deploy/components` and `topics/`. This script
renders them, puts an expression of Helm in each place that is a value, and writes
`deploy/chart/templates/made`, with what the components patch behind a switch of the values. Under
the release name `stream-dedup` the chart's own values give what `kustomize build` gives, but for
the labels that Helm's users expect; `test_chart.py` holds that. `values.yaml`, its schema and the
templates beside `made` are written by hand; the chart's README is made of `values.yaml`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import ROOT, render

CHART = ROOT / "deploy" / "chart"
MADE = CHART / "templates" / "made"
COMPONENTS = ROOT / "deploy" / "components"
_HEAD = "{{- /* Made by `make deploy-chart` from deploy/ and topics/; do not edit by hand. */ -}}\n"
_TABLE = "<!-- Made of values.yaml by `make deploy-chart`. -->"
_NAME = "app.kubernetes.io/name"
# A name of ours, but in a path.
_OURS = re.compile(r"(?<![\w-])(?<!\w[./])stream-dedup(?=$|:8080|,|\.|-(?:[a-z-]+))")
_AS_WRITTEN = ("mountPath", "command", "args", "replacement")  # what is the same in all releases
_STORED = ("index", "search")
# Components whose patches stand behind a switch: (StatefulSet, the expression that switches them).
_SWITCHES = {
    "snapshots": ("stream-dedup-index", ".Values.index.snapshots.enabled"),
    "console-token": ("stream-dedup-search", ".Values.console.tokenSecret"),
}
# Set by the chart itself from other values, so `settings` need not.
_ASKED_FOR = "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS"

Manifest = dict[str, Any]


class Places:
    """Expressions of Helm that wait to stand where their tokens stand in YAML that is dumped."""

    def __init__(self) -> None:
        self._blocks: dict[str, str] = {}

    def _token(self, block: str) -> str:
        token = f"PLACE{len(self._blocks)}PLACE"
        self._blocks[token] = block
        return token

    def value(self, expression: str) -> str:
        """Return what stands for a value, or a part of one."""
        return self._token("{{ " + expression + " }}")

    def block(self, expression: str) -> str:
        """Return what stands for a value of several lines; `INDENT` is the indent of its place and
        two more."""
        return self._token("BLOCK{{- " + expression + " | nindent INDENT }}")

    def lines(self, text: str) -> str:
        """Return what stands for whole lines, as a key or an item; `INDENT` is the indent of its
        place."""
        return self._token("LINES" + text)

    def items(self, expression: str) -> str:
        """Return an item of a list in whose place any number of them stand."""
        return self.lines(
            "{{- with " + expression + " }}\n{{- toYaml . | nindent INDENT }}\n{{- end }}"
        )

    def key(self, key: str, expression: str) -> str:
        """Return a key that stands there with its value only where there is one."""
        return self.lines(
            "{{- with "
            + expression
            + " }}\nMARGIN"
            + key
            + ": {{- toYaml . | nindent DEEPER }}\n{{- end }}"
        )

    def unless(self, key: str, expression: str, own: Any) -> str:
        """Return a key that stands there with what a value says, and with a document where it says
        nothing."""
        margin = "\n".join(f"MARGIN{line}" for line in self.dump({key: own}).splitlines())
        said = "{{- with " + expression + " }}\nMARGIN" + key + ": {{- toYaml . | nindent DEEPER }}"
        return self.lines(said + "\n{{- else }}\n" + margin + "\n{{- end }}")

    def dump(self, document: Any) -> str:
        """Return a document as YAML, with the expressions in their places."""
        text = yaml.safe_dump(document, sort_keys=False, width=1000)
        return "".join(self._line(line) for line in text.splitlines(keepends=True))

    def _line(self, line: str) -> str:
        found = re.search(r"PLACE\d+PLACE", line)
        if found is None:
            return line.replace("{{", '{{ "{{" }}')  # what Helm would take for its own
        block, indent = self._blocks[found.group()], len(line) - len(line.lstrip())
        if block.startswith("LINES"):
            text = block.removeprefix("LINES").replace("INDENT", str(indent))
            text = text.replace("MARGIN", " " * indent).replace("DEEPER", str(indent + 2))
            return re.sub(r"PLACE\d+PLACE", lambda inner: self._blocks[inner.group()], text) + "\n"
        if block.startswith("BLOCK"):
            text = block.removeprefix("BLOCK").replace("INDENT", str(indent + 2))
            return f"{line[: found.start()].rstrip()}\n{' ' * (indent + 2)}{text}\n"
        return re.sub(r"PLACE\d+PLACE", lambda inner: self._blocks[inner.group()], line)

    def switched(self, expression: str, document: Any) -> str:
        """Return a line in whose place a document's lines stand where the expression holds."""
        margin = "\n".join(f"MARGIN{line}" for line in self.dump(document).splitlines())
        return self.lines("{{- if " + expression + " }}\n" + margin + "\n{{- end }}")


def named(value: str, places: Places) -> str:
    """Return a string with the release's name where our objects' names begin."""
    return _OURS.sub(lambda _: places.value('include "stream-dedup.fullname" .'), value)


def _walk(node: Any, places: Places) -> Any:
    """Put names and labels of the release in the place of ours."""
    if isinstance(node, list):
        return [_walk(one, places) for one in node]
    if isinstance(node, str):
        return named(node, places)
    if not isinstance(node, dict):
        return node
    if _NAME in node and node[_NAME] == "stream-dedup":
        rest = {
            key: value
            for key, value in node.items()
            if key not in (_NAME, "app.kubernetes.io/instance")
        }
        return {
            **rest,
            "app.kubernetes.io/instance": places.value(".Release.Name"),
            _NAME: places.value('include "stream-dedup.name" .'),
        }
    return {
        key: value if key in _AS_WRITTEN else _walk(value, places) for key, value in node.items()
    }


def _role_of(manifest: Manifest) -> str | None:
    role = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return role if manifest["kind"] in {"StatefulSet", "Deployment"} else None


def _container(container: Manifest, places: Places) -> None:
    container["image"] = places.value('include "stream-dedup.image" .')
    container[
        places.lines(
            "{{- with $.Values.image.pullPolicy }}\nMARGINimagePullPolicy: {{ . }}\n{{- end }}"
        )
    ] = None


def _pod(pod: Manifest, role: str, places: Places) -> None:
    """Put the values of a role's pods in their places; `$pods` holds them."""
    spec = pod["spec"]
    labels = pod["metadata"]["labels"]
    labels[places.items("$pods.podLabels")] = None
    pod["metadata"][places.key("annotations", "$pods.podAnnotations")] = None
    for container in spec["containers"]:
        _container(container, places)
        container["resources"] = places.block(f"toYaml .Values.{role}.resources")
        container["securityContext"] = places.block("toYaml $pods.securityContext")
        container["envFrom"] = [
            {"configMapRef": {"name": places.value('include "stream-dedup.config" .')}},
            places.lines(
                "{{- range .Values.secretsAsEnvironment }}\nMARGIN- secretRef:\nMARGIN    name: {{ "
                ". }}\n{{- end }}"
            ),
        ]
        container["env"].append(places.items("$pods.extraEnv"))
        container["volumeMounts"].append(places.items("$pods.extraVolumeMounts"))
        for probe in ("startup", "liveness", "readiness"):
            if f"{probe}Probe" in container:
                own = container[f"{probe}Probe"]
                container[f"{probe}Probe"] = {
                    "httpGet": own["httpGet"],
                    places.lines(f"{{{{- toYaml $pods.probes.{probe} | nindent INDENT }}}}"): None,
                }
    spec["containers"].append(places.items("$pods.extraContainers"))
    spec[places.key("initContainers", "$pods.extraInitContainers")] = None
    spec["securityContext"] = places.block("toYaml $pods.podSecurityContext")
    spec["serviceAccountName"] = places.value('include "stream-dedup.serviceAccountName" .')
    for volume in spec.get("volumes", ()):
        if volume.get("secret", {}).get("secretName") == "stream-dedup-key":
            volume["secret"]["secretName"] = places.value(".Values.keySecret")
    spec["volumes"].append(places.items("$pods.extraVolumes"))
    if own := spec.pop("topologySpreadConstraints", None):
        spec[
            places.unless(
                "topologySpreadConstraints", "$pods.topologySpreadConstraints", _walk(own, places)
            )
        ] = None
    for key in ("imagePullSecrets", "nodeSelector", "tolerations", "affinity", "hostAliases"):
        spec[
            places.key(
                key, "$.Values.imagePullSecrets" if key == "imagePullSecrets" else f"$pods.{key}"
            )
        ] = None
    line = "{{- with $pods.priorityClassName }}\nMARGINpriorityClassName: {{ . }}\n{{- end }}"
    spec[places.lines(line)] = None


def _patched(manifest: Manifest, places: Places) -> None:
    """Put what components add to this manifest in its place, behind their switches."""
    for component, (name, switch) in _SWITCHES.items():
        if manifest["metadata"]["name"] != name or manifest["kind"] != "StatefulSet":
            continue
        whole = yaml.safe_load(
            (COMPONENTS / component / "kustomization.yaml").read_text(encoding="utf-8")
        )
        for one in yaml.safe_load(whole["patches"][0]["patch"]):
            *steps, last = one["path"].strip("/").split("/")
            place: Any = manifest
            for step in steps:
                place = place[int(step) if step.isdigit() else step]
            value = _component_value(one["value"], places)
            if last == "-":
                place.append(places.switched(switch, [value]))
            else:
                place[places.switched(switch, {last: value})] = None


def _component_value(value: Any, places: Places) -> Any:
    for one in value if isinstance(value, list) else [value]:
        if one.get("image") == "stream-dedup":
            _container(one, places)
        if one.get("metadata", {}).get("name") == "snapshots":
            one["spec"]["resources"]["requests"]["storage"] = places.value(
                ".Values.index.snapshots.size"
            )
            one["spec"][places.lines(_class_of("index.snapshots"))] = None
        if one.get("secret", {}).get("secretName") == "stream-dedup-console":
            one["secret"]["secretName"] = places.value(".Values.console.tokenSecret")
    return _walk(value, places)


def _class_of(volume: str) -> str:
    return f"{{{{- with .Values.{volume}.storageClass }}}}\nMARGINstorageClassName: {{{{ . | quote }}}}\n{{{{- end }}}}"


def _workload(manifest: Manifest, role: str, places: Places) -> None:
    spec = manifest["spec"]
    if role == "worker":
        spec.pop("replicas")
        line = "{{- if not .Values.autoscaling.enabled }}\nMARGINreplicas: {{ .Values.worker.replicas }}\n{{- end }}"
        spec[places.lines(line)] = None
    else:
        spec["replicas"] = places.value(f".Values.{role}.replicas")
    if manifest["kind"] == "StatefulSet":
        spec[places.key("updateStrategy", "$pods.updateStrategy")] = None
    if role in _STORED:
        claim = spec["volumeClaimTemplates"][0]["spec"]
        claim["resources"]["requests"]["storage"] = places.value(f".Values.{role}.volume.size")
        claim[places.lines(_class_of(f"{role}.volume"))] = None
    _pod(spec["template"], role, places)
    manifest["metadata"][places.key("annotations", "$pods.annotations")] = None


def _policy(manifest: Manifest, places: Places) -> None:
    values = {
        "stream-dedup-kafka": ("egress", "kafka"),
        "stream-dedup-others": ("egress", "egress"),
        "stream-dedup-people": ("ingress", "consoleFrom"),
        "stream-dedup-metrics": ("ingress", "metricsFrom"),
    }
    side, value = values.get(manifest["metadata"]["name"], ("", ""))
    if side == "egress":
        manifest["spec"][side] = places.block(f"toYaml .Values.networkPolicy.{value}")
    elif side == "ingress":
        manifest["spec"][side][0]["from"] = places.block(f"toYaml .Values.networkPolicy.{value}")


def placed(manifest: Manifest) -> str:
    """Return the template of one manifest: its YAML with expressions where values stand."""
    kind, name, role = manifest["kind"], manifest["metadata"]["name"], _role_of(manifest)
    places = Places()
    if kind == "NetworkPolicy":
        _policy(manifest, places)
    if kind == "ConfigMap":
        manifest["metadata"]["name"] = places.value('include "stream-dedup.config" .')
        manifest["data"] = places.block('include "stream-dedup.settings" .')
    if kind == "ServiceAccount":
        manifest["metadata"]["name"] = places.value('include "stream-dedup.serviceAccountName" .')
        manifest["metadata"][places.key("annotations", ".Values.serviceAccount.annotations")] = None
    if role is not None:
        _workload(manifest, role, places)
    _patched(manifest, places)
    topic = kind == "KafkaTopic"
    whole = manifest if topic else _walk(manifest, places)
    labels = whole["metadata"].setdefault("labels", {})
    labels[places.lines('{{- include "stream-dedup.labels" . | nindent INDENT }}')] = None
    if kind == "Service" and name == "stream-dedup-search":
        whole["metadata"][places.key("annotations", ".Values.console.service.annotations")] = None
        whole["spec"][
            places.lines(
                "{{- with .Values.console.service.type }}\nMARGINtype: {{ . }}\n{{- end }}"
            )
        ] = None
    text = places.dump(whole)
    if role is not None:
        text = (
            f"{{{{- $pods := mustMergeOverwrite (deepCopy .Values.pods) .Values.{role} }}}}\n{text}"
        )
    switch = {
        "NetworkPolicy": ".Values.networkPolicy.enabled",
        "ServiceAccount": ".Values.serviceAccount.create",
        "PodDisruptionBudget": ".Values.podDisruptionBudgets",
    }.get(kind)
    if name == "stream-dedup-metrics":
        switch = "and .Values.networkPolicy.enabled .Values.monitoring.podMonitor.enabled"
    return text if switch is None else f"{{{{- if {switch} }}}}\n{text}{{{{- end }}}}\n"


def _of_component(name: str, file: str) -> Manifest:
    (found,) = yaml.safe_load_all((COMPONENTS / name / file).read_text(encoding="utf-8"))
    return found  # type: ignore[no-any-return]


def monitoring() -> str:
    """Return the template of what the Prometheus Operator and Grafana take."""
    places = Places()
    monitor = _walk(_of_component("monitoring", "podmonitor.yaml"), places)
    monitor["spec"]["selector"]["matchLabels"] |= {
        "app.kubernetes.io/instance": places.value(".Release.Name")
    }
    endpoint = monitor["spec"]["podMetricsEndpoints"][0]
    endpoint["interval"] = places.value(".Values.monitoring.podMonitor.interval")
    endpoint["relabelings"].append(places.items(".Values.monitoring.podMonitor.relabelings"))
    timeout = "{{- with .Values.monitoring.podMonitor.scrapeTimeout }}\nMARGINscrapeTimeout: {{ . }}\n{{- end }}"
    endpoint[places.lines(timeout)] = None
    endpoint[places.key("metricRelabelings", ".Values.monitoring.podMonitor.metricRelabelings")] = (
        None
    )
    rules = _of_component("monitoring", "prometheusrule.yaml")
    for group in rules["spec"]["groups"]:
        for rule in group["rules"]:
            if "annotations" in rule:
                page = rule["annotations"]["runbook_url"].partition("#")[2]
                rule["annotations"]["runbook_url"] = places.value("$handbook") + f"#{page}"
    rules = {
        **_walk({key: value for key, value in rules.items() if key != "spec"}, places),
        "spec": rules["spec"],
    }
    parts = []
    for one, switch in ((monitor, "podMonitor"), (rules, "rules")):
        labels = one["metadata"]["labels"]
        labels[places.lines('{{- include "stream-dedup.labels" . | nindent INDENT }}')] = None
        labels[places.items(f".Values.monitoring.{switch}.labels")] = None
        asked = (
            '{{- $handbook := required "monitoring.rules.handbook: name the address where your '
            'people read docs/handbook.md" '
            ".Values.monitoring.rules.handbook }}\n"
        )
        before = asked if switch == "rules" else ""
        parts.append(
            f"{{{{- if .Values.monitoring.{switch}.enabled }}}}\n{before}{places.dump(one)}{{{{- end }}}}\n"
        )
    policy = placed(_of_component("monitoring", "network.yaml"))
    return _HEAD + "---\n".join([*parts, policy])


def autoscaling() -> str:
    """Return the template of KEDA's object."""
    places = Places()
    one = _walk(_of_component("keda", "scaledobject.yaml"), places)
    spec, trigger = one["spec"], one["spec"]["triggers"][0]
    spec["minReplicaCount"] = places.value(".Values.autoscaling.minReplicas")
    spec["maxReplicaCount"] = places.value(".Values.autoscaling.maxReplicas")
    trigger["metadata"] |= {
        "bootstrapServers": places.value(f'index .Values.settings "{_ASKED_FOR}" | quote'),
        "consumerGroup": places.value('include "stream-dedup.group" .'),
        "topic": places.value('include "stream-dedup.documents" .'),
        "lagThreshold": places.value(".Values.autoscaling.lagThreshold | quote"),
        places.lines(
            "{{- with .Values.autoscaling.triggerMetadata }}\n{{- toYaml . | nindent INDENT "
            "}}\n{{- end }}"
        ): None,
    }
    trigger[places.key("authenticationRef", ".Values.autoscaling.authenticationRef")] = None
    one["metadata"]["labels"][
        places.lines('{{- include "stream-dedup.labels" . | nindent INDENT }}')
    ] = None
    return f"{_HEAD}{{{{- if .Values.autoscaling.enabled }}}}\n{places.dump(one)}{{{{- end }}}}\n"


def doctor(toolbox: Manifest) -> str:
    """Return the pod of `helm test`: the toolbox, but for what it runs."""
    places = Places()
    _pod(toolbox, "toolbox", places)
    labels = {**toolbox["metadata"]["labels"], "app.kubernetes.io/component": "test"}
    labels[places.lines('{{- include "stream-dedup.labels" . | nindent INDENT }}')] = None
    annotations = {"helm.sh/hook": "test", "helm.sh/hook-delete-policy": "before-hook-creation"}
    metadata = {"name": "stream-dedup-test", "labels": labels, "annotations": annotations}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": toolbox["spec"]}
    container = pod["spec"]["containers"][0]
    container |= {"name": "doctor", "command": ["stream-dedup", "doctor"]}
    pod["spec"]["restartPolicy"] = "Never"
    start = "{{- $pods := mustMergeOverwrite (deepCopy .Values.pods) .Values.toolbox }}\n"
    return _HEAD + start + places.dump(_walk(pod, places))


def settings() -> str:
    """Return the template of the settings that the chart makes by itself, which the values may say
    otherwise."""
    places = Places()
    own = {
        name: named(value, places)
        for name, value in default_settings().items()
        if name != _ASKED_FOR
    }
    text = places.dump(own)
    return f'{_HEAD}{{{{- define "stream-dedup.ownSettings" -}}}}\n{text}{{{{- end -}}}}\n'


def templates() -> dict[str, str]:
    """Return the text of each template in `made`, by its file's name."""
    made: dict[str, list[str]] = {}
    files: dict[str, str] = {}
    for manifest in yaml.safe_load_all(render(ROOT / "deploy" / "base")):
        component = (
            manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component", "common")
        )
        if (
            manifest["metadata"]["name"] == "stream-dedup-toolbox"
            and manifest["kind"] == "Deployment"
        ):
            files["test.yaml"] = doctor(
                yaml.safe_load(yaml.safe_dump(manifest["spec"]["template"]))
            )
        made.setdefault(f"{component}.yaml", []).append(placed(manifest))
    files |= {name: _HEAD + "---\n".join(parts) for name, parts in made.items()}
    topics = [
        placed(manifest)
        for manifest in yaml.safe_load_all(render(ROOT / "topics"))
        if manifest["kind"] == "KafkaTopic"
    ]
    files["topics.yaml"] = (
        _HEAD + "{{- if .Values.strimziTopics }}\n" + "---\n".join(topics) + "{{- end }}\n"
    )
    files |= {
        "monitoring.yaml": monitoring(),
        "autoscaling.yaml": autoscaling(),
        "_settings.tpl": settings(),
    }
    return files


def default_settings() -> dict[str, str]:
    """Return the settings of the base."""
    (config,) = (
        one
        for one in yaml.safe_load_all(render(ROOT / "deploy" / "base"))
        if one["kind"] == "ConfigMap"
    )
    data: dict[str, str] = config["data"]
    return data


def copies() -> dict[str, Path]:
    """Return which files the chart carries as they are, by their name in `files`."""
    return {"dashboard.json": COMPONENTS / "monitoring" / "dashboard.json"}


def readme() -> str:
    """Return the chart's README: what stands in it before the list, and the list of `values.yaml`.

    Values of which none has a comment stand together, beside the one that holds them.
    """
    told: dict[str, str] = {}
    comment: list[str] = []
    path: list[tuple[int, str]] = []
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        if line.strip().startswith("#"):
            comment.append(line.strip().removeprefix("#").strip())
            continue
        found = re.fullmatch(r"( *)([\w.-]+):(?: (.*))?", line)
        if found is not None:
            path = [*(one for one in path if one[0] < len(found[1])), (len(found[1]), found[2])]
            told[".".join(name for _, name in path)] = " ".join(comment)
        comment = []
    head, _, _ = (CHART / "README.md").read_text(encoding="utf-8").partition(_TABLE)
    rows = _rows(yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8")), "", told)
    return f"{head}{_TABLE}\n\n" + "\n".join(rows) + "\n"


def _rows(values: dict[str, Any], above: str, told: dict[str, str]) -> Iterator[str]:
    for key, value in values.items():
        name = f"{above}.{key}" if above else key
        inner = any(text for other, text in told.items() if other.startswith(f"{name}."))
        if inner and told[name]:
            yield f"- `{name}`: {told[name]}"
        if inner:
            yield from _rows(value, name, told)
        else:
            default = (
                yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=1000)
                .partition("\n...")[0]
                .strip()
            )
            yield f"- `{name}` (`{default}`){told[name] and ': '}{told[name]}"


def main() -> None:
    """Write templates, files and README; what is not made any more goes."""
    for folder in (MADE, CHART / "files"):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    for name, text in templates().items():
        (MADE / name).write_text(text, encoding="utf-8")
    for name, path in copies().items():
        (CHART / "files" / name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (CHART / "README.md").write_text(readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
