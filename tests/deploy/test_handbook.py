"""Every command of the handbook exists: the program itself parses ours, and kubectl's are held
against the manifests."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stream_dedup.__main__ import main
from stream_dedup.fingerprinting.key import load_key
from stream_dedup.settings.properties import PREFIX
from stream_dedup.settings.settings import Settings
from tests.deploy import rules, tools

PAGES = (
    tools.ROOT / "docs" / "handbook.md",
    tools.ROOT / "deploy" / "README.md",
    tools.ROOT / "topics" / "README.md",
)
PROGRAMS = ("stream-dedup", "kubectl", "docker", "openssl", "make")
VERBS = "apply annotate exec create delete describe get kustomize label logs port-forward rollout scale set"


def commands() -> Iterator[str]:
    """Yield the commands of the console blocks, and those within the text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
            lines = map(str.strip, block.splitlines())
            yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
        without = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        inline = (" ".join(one.split()) for one in re.findall(r"`([^`]+)`", without))
        yield from (
            one for one in inline if one.split()[0] in PROGRAMS and " " in one and "|" not in one
        )


COMMANDS = sorted(set(commands()))


def by(program: str) -> list[str]:
    return [one for one in COMMANDS if one.split()[0] == program]


def in_a_pod(line: str) -> list[str]:
    """Return what a kubectl command has a pod run."""
    words = shlex.split(line)
    return words[words.index("--") + 1 :] if "--" in words else []


OURS = by("stream-dedup") + [
    shlex.join(words)
    for words in map(in_a_pod, by("kubectl"))
    if words and words[0] == "stream-dedup"
]


@pytest.mark.parametrize("line", sorted(set(OURS)))
def test_a_command_of_ours_exists(line: str) -> None:
    """With these options; one that is misspelt does not. `--help` keeps it from being run."""
    words = shlex.split(line)[1:]

    assert main([*words, "--help"]) == 0
    assert main([*words, "--no-such-option", "--help"]) == 2


def wrong_with(line: str, manifests: list[rules.Manifest]) -> list[str]:
    """Return what a kubectl command names that is not there."""
    words = shlex.split(line)[1:]
    words = words[: words.index("--")] if "--" in words else words
    there = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in manifests}
    for one in rules.of_kind(manifests, "StatefulSet"):
        name = one["metadata"]["name"]
        for number in range(one["spec"].get("replicas", 1)):
            there.add(f"pod/{name}-{number}")
            there |= {
                f"persistentvolumeclaim/{claim['metadata']['name']}-{name}-{number}"
                for claim in one["spec"].get("volumeClaimTemplates", [])
            }
    containers = {
        container["name"] for _, pod in rules.pods(manifests) for container in rules.containers(pod)
    }
    services = {one["metadata"]["name"] for one in rules.of_kind(manifests, "Service")}
    hosts = re.findall(r"http://([\w-]+)\.([\w-]+):8080", line)
    problems = [
        f"the host {pod}"
        for pod, service in hosts
        if f"pod/{pod}" not in there or service not in services
    ]
    problems += [
        f"the container {one}"
        for one in re.findall(r"--containers?=([\w-]+)", line)
        if one not in containers
    ]
    labels = [pod["metadata"]["labels"] for _, pod in rules.pods(manifests)]
    problems += [
        f"the label {name}={value}"
        for name, value in re.findall(r"--selector=([\w./-]+)=([\w-]+)", line)
        if not any(one.get(name) == value for one in labels)
    ]
    if "--namespace" in words:
        place = words.index("--namespace")
        if words[place + 1] not in {one["metadata"].get("namespace") for one in manifests}:
            problems.append("the namespace")
        del words[place : place + 2]
    if words[0] not in VERBS.split():
        problems.append(f"the verb {words[0]}")
    for word in words[1:]:
        if (
            re.fullmatch(r"deploy/[\w/]+", word)
            and not (tools.ROOT / word / "kustomization.yaml").exists()
        ):
            problems.append(f"the folder {word}")
        elif word.startswith("--from=") and word.partition("=")[2] not in there:
            problems.append(word)
        elif (
            word.startswith("deploy/")
            and word.endswith(".yaml")
            and not (tools.ROOT / word).exists()
        ):
            problems.append(f"the file {word}")
        elif (
            re.fullmatch(r"[a-z]+/[\w-]+", word)
            and not word.startswith("deploy/")
            and word not in there
        ):
            problems.append(word)
        elif (
            re.fullmatch(r"[a-z]+=stream-dedup:.*", word)
            and word.partition("=")[0] not in containers
        ):
            problems.append(f"the container of {word}")
    if words[0] == "exec" and "-- " not in line:
        problems.append("nothing to run")
    if words[0] in {"logs", "exec"} and not {words[1], f"pod/{words[1]}"} & there:
        problems.append(f"the pod {words[1]}")
    if words[:3] == ["create", "secret", "generic"] and words[3] not in rules.FOREIGN_SECRETS:
        problems.append(f"the secret {words[3]}")
    return problems


def test_kubectl_names_what_is_there(rendered: dict[str, list[dict[str, Any]]]) -> None:
    """Verbs, namespace, folders, resources and containers; names that are not in the manifests are
    found."""
    manifests = rendered["production"]
    assert len(by("kubectl")) >= 10

    assert {line: wrong for line in by("kubectl") if (wrong := wrong_with(line, manifests))} == {}
    for broken in (
        "kubectl --namespace other get pods",
        "kubectl rollout status statefulset/stream-dedup-wroker",
        "kubectl kustomize deploy/overlays/none",
        "kubectl set image statefulset/stream-dedup-index idnex=stream-dedup:1",
        "kubectl drian node",
        "kubectl --namespace stream-dedup port-forward service/stream-dedup-serach 8080",
        (
            "kubectl --namespace stream-dedup exec deployment/stream-dedup-tolbox -- stream-dedup "
            "doctor"
        ),
        "kubectl --namespace stream-dedup exec deployment/stream-dedup-toolbox stream-dedup doctor",
        "kubectl --namespace stream-dedup exec stream-dedup-index-0 --container=idnex -- ls",
        (
            "kubectl --namespace stream-dedup exec deployment/stream-dedup-toolbox -- stream-dedup similar "
            "http://index-0.index:8080"
        ),
        "kubectl --namespace stream-dedup delete pod --selector=app.kubernetes.io/component=wroker",
        "kubectl apply --filename deploy/overlays/production/namspace.yaml",
    ):
        assert wrong_with(broken, manifests), broken


def test_make_targets_and_files_exist() -> None:
    """What else the pages tell to type."""
    targets = set(re.findall(r"^([a-z-]+):", (tools.ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {line.split()[1] for line in by("make")} <= targets
    for line in by("docker"):
        words = shlex.split(line)
        assert (tools.ROOT / words[words.index("--file") + 1]).exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_key_that_the_handbook_makes_is_one(tmp_path: Path) -> None:
    """The command is run, and the program takes its file."""
    (line,) = by("openssl")
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=20)

    assert len(load_key(tmp_path / shlex.split(line)[-1])) == 32


def test_settings_that_the_pages_name_exist() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for page in PAGES:
        named = set(re.findall(r"STREAM_DEDUP_[A-Z_]+[A-Z]", page.read_text(encoding="utf-8")))
        assert {name for name in named if not name.startswith(f"{PREFIX}KAFKA_")} <= known, (
            page.name
        )


def test_the_runbook_is_typed_where_it_can_be() -> None:
    """From the 3 a.m. page on, no command of ours stands alone: it says in which pod it runs."""
    text = PAGES[0].read_text(encoding="utf-8").partition("## 3 a.m.")[2]
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)

    assert len(blocks) >= 8
    assert [
        line
        for block in blocks
        for line in block.splitlines()
        if line.strip().startswith("$ stream-dedup")
    ] == []


def test_the_indexs_volume_holds_what_its_memory_holds() -> None:
    """By the table of the handbook, with old files that a snapshot holds, and with as much free as
    keeps the alert silent."""
    index = tools.ROOT / "deploy" / "base" / "index.yaml"
    workload = next(
        one for one in yaml.safe_load_all(index.read_text()) if one["kind"] == "StatefulSet"
    )["spec"]
    memory = workload["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]
    claim = workload["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    table = PAGES[0].read_text(encoding="utf-8")

    def told(row: str, what: str) -> int:
        return int(re.search(rf"^\| {row}.*?{what}", table, re.MULTILINE)[1])  # type: ignore[index]

    representatives = 1_000_000 * told("index, memory", rf"`bands` {memory}: (\d+) million")
    volume_bytes = representatives * (
        3 * told("index, volume", r"(\d+) bytes") + told("index, beside", r"(\d+) bytes")
    )
    assert volume_bytes <= 0.85 * int(claim.removesuffix("Gi")) * 2**30
