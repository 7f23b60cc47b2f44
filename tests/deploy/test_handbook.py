"""Commands of the handbook exist: ours are parsed, kubectl's are checked against the manifests."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from stream_dedup.__main__ import main
from stream_dedup.fingerprinting.key import load_key
from stream_dedup.index.tables.neighbours import ROWS_MAX
from stream_dedup.indexer.role import NUMBERS_MAX
from stream_dedup.settings.properties import PREFIX
from stream_dedup.settings.settings import Settings
from tests.deploy import rules, tools

PAGES = (
    tools.ROOT / "docs" / "handbook.md",
    tools.ROOT / "deploy" / "README.md",
    tools.ROOT / "topics" / "README.md",
)
PROGRAMS = ("stream-dedup", "kubectl", "helm", "docker", "openssl", "make")
VERBS = (
    "apply annotate exec create delete describe get label logs patch port-forward rollout scale set"
)
NAMESPACE = "stream-dedup"
# Autoscaling is off by default, so the manifests do not contain it.
KEDA = "scaledobject/stream-dedup-worker"


def commands() -> Iterator[str]:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL):
            lines = map(str.strip, block.splitlines())
            yield from (line.removeprefix("$ ") for line in lines if line.startswith("$ "))
        without = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        inline = (" ".join(command.split()) for command in re.findall(r"`([^`]+)`", without))
        yield from (
            command
            for command in inline
            if command.split()[0] in PROGRAMS and " " in command and "|" not in command
        )


COMMANDS = sorted(set(commands()))


def commands_of(program: str) -> list[str]:
    return [command for command in COMMANDS if command.split()[0] == program]


def pod_command(line: str) -> list[str]:
    words = shlex.split(line)
    return words[words.index("--") + 1 :] if "--" in words else []


OURS = commands_of("stream-dedup") + [
    shlex.join(words)
    for words in map(pod_command, commands_of("kubectl"))
    if words and words[0] == "stream-dedup"
]


@pytest.mark.parametrize("line", sorted(set(OURS)))
def test_a_command_of_ours_exists(line: str) -> None:
    """The program knows the command and its options; `--help` keeps the command from being run."""
    words = shlex.split(line)[1:]

    assert main([*words, "--help"]) == 0
    assert main([*words, "--no-such-option", "--help"]) == 2


def find_problems(line: str, manifests: list[rules.Manifest]) -> list[str]:
    words = shlex.split(line)[1:]
    words = words[: words.index("--")] if "--" in words else words
    existing = {KEDA, f"namespace/{NAMESPACE}"}
    existing |= {
        f"{manifest['kind'].lower()}/{manifest['metadata']['name']}" for manifest in manifests
    }
    for manifest in rules.of_kind(manifests, "StatefulSet"):
        name = manifest["metadata"]["name"]
        for number in range(manifest["spec"].get("replicas", 1)):
            existing.add(f"pod/{name}-{number}")
            existing |= {
                f"persistentvolumeclaim/{claim['metadata']['name']}-{name}-{number}"
                for claim in manifest["spec"].get("volumeClaimTemplates", [])
            }
    containers = {
        container["name"] for _, pod in rules.pods(manifests) for container in rules.containers(pod)
    }
    services = {manifest["metadata"]["name"] for manifest in rules.of_kind(manifests, "Service")}
    hosts = re.findall(r"http://([\w-]+)\.([\w-]+):8080", line)
    problems = [
        f"the host {pod}"
        for pod, service in hosts
        if f"pod/{pod}" not in existing or service not in services
    ]
    problems += [
        f"the container {container}"
        for container in re.findall(r"--containers?=([\w-]+)", line)
        if container not in containers
    ]
    labels = [pod["metadata"]["labels"] for _, pod in rules.pods(manifests)]
    problems += [
        f"the label {name}={value}"
        for name, value in re.findall(r"--selector=([\w./-]+)=([\w-]+)", line)
        if not any(pod_labels.get(name) == value for pod_labels in labels)
    ]
    if "--namespace" in words:
        place = words.index("--namespace")
        if words[place + 1] != NAMESPACE:
            problems.append("the namespace")
        del words[place : place + 2]
    if words[0] not in VERBS.split():
        problems.append(f"the verb {words[0]}")
    for word in words[1:]:
        if word.startswith("--from=") and word.partition("=")[2] not in existing:
            problems.append(word)
        elif re.fullmatch(r"deploy/.*\.yaml", word) and not (tools.ROOT / word).exists():
            problems.append(f"the file {word}")
        elif re.fullmatch(r"(?!deploy/)[a-z]+/[\w-]+", word) and word not in existing:
            problems.append(word)
        elif "=stream-dedup:" in word and word.partition("=")[0] not in containers:
            problems.append(f"the container of {word}")
    if words[0] == "exec" and "-- " not in line:
        problems.append("nothing to run")
    if words[0] in {"logs", "exec"} and not {words[1], f"pod/{words[1]}"} & existing:
        problems.append(f"the pod {words[1]}")
    if words[:3] == ["create", "secret", "generic"] and words[3] not in rules.FOREIGN_SECRETS:
        problems.append(f"the secret {words[3]}")
    return problems


def test_kubectl_commands_name_existing_resources(manifests: list[rules.Manifest]) -> None:
    """Verbs, namespaces, files, resources and containers exist; unknown names are reported."""
    assert len(commands_of("kubectl")) >= 10

    assert {
        line: wrong for line in commands_of("kubectl") if (wrong := find_problems(line, manifests))
    } == {}
    for broken in (
        "kubectl --namespace other get pods",
        "kubectl rollout status statefulset/stream-dedup-wroker",
    ):
        assert find_problems(broken, manifests), broken


VALUES = yaml.safe_load((tools.CHART / "values.yaml").read_text(encoding="utf-8"))


def has_value(path: str) -> bool:
    found = VALUES
    for step in path.split("."):
        if not isinstance(found, dict) or step not in found:
            return False
        found = found[step]
    return True


def find_helm_problems(line: str) -> list[str]:
    words = shlex.split(line)
    problems = [] if words[1] in {"upgrade", "test", "rollback"} else [f"the verb {words[1]}"]
    given = dict(pairwise(words))
    if given.get("--namespace") != NAMESPACE:
        problems.append("the namespace")
    if words[1] == "upgrade" and tools.ROOT / "deploy" / "chart" not in {
        tools.ROOT / word for word in words
    }:
        problems.append("the chart")
    values = [after.partition("=")[0] for word, after in pairwise(words) if word == "--set"]
    return problems + [f"the value {value}" for value in values if not has_value(value)]


def test_helm_commands_name_existing_values() -> None:
    """Chart, namespace and values exist, and so does every value that a page names."""
    assert len(commands_of("helm")) >= 5
    assert {
        line: wrong for line in commands_of("helm") if (wrong := find_helm_problems(line))
    } == {}
    for page in (*PAGES, *(tools.ROOT / "docs" / "how-to").glob("*.md")):
        named = re.findall(r"`([a-z]\w+(?:\.\w+)+)`", page.read_text(encoding="utf-8"))
        values = {value for value in named if value.partition(".")[0] in VALUES}
        assert {value for value in values if not has_value(value)} == set(), page.name


def test_make_targets_and_files_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (tools.ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {line.split()[1] for line in commands_of("make")} <= targets
    for line in commands_of("docker"):
        words = shlex.split(line)
        assert (tools.ROOT / words[words.index("--file") + 1]).exists()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_handbooks_command_makes_a_valid_key(tmp_path: Path) -> None:
    (line,) = commands_of("openssl")
    subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=20)

    assert len(load_key(tmp_path / shlex.split(line)[-1])) == 32


def test_settings_that_the_pages_name_exist() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    for page in PAGES:
        named = set(re.findall(r"STREAM_DEDUP_[A-Z_]+[A-Z]", page.read_text(encoding="utf-8")))
        assert {name for name in named if not name.startswith(f"{PREFIX}KAFKA_")} <= known, (
            page.name
        )


def test_runbook_commands_run_in_a_pod() -> None:
    """From the first steps after an alert on, each command of ours names its pod."""
    text = PAGES[0].read_text(encoding="utf-8").partition("## First steps after an alert")[2]
    blocks = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)

    assert len(blocks) >= 8
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    assert [line for line in lines if line.startswith("$ stream-dedup")] == []


def test_the_index_volume_fits_as_much_as_its_memory() -> None:
    """By the handbook's table, also during a snapshot, with enough free space for no alert."""
    memory = VALUES["index"]["resources"]["limits"]["memory"]
    claim = VALUES["index"]["volume"]["size"]
    table = PAGES[0].read_text(encoding="utf-8")

    def read_figure(row: str, what: str) -> int:
        return int(re.search(rf"^\| {row}.*?{what}", table, re.MULTILINE)[1])  # type: ignore[index]

    representatives = 1_000_000 * read_figure("index, memory", rf"`bands` {memory}: (\d+) million")
    volume_bytes = representatives * (
        3 * read_figure("index: volume", r"(\d+) bytes")
        + read_figure("index: table files", r"(\d+) bytes")
    )
    assert volume_bytes <= 0.85 * int(claim.removesuffix("Gi")) * 2**30


def figures(row: str) -> list[float]:
    """Return the number at the beginning of each cell of a table's row; 10^6 is a million."""
    found = []
    for cell in row.strip("| \n").split("|"):
        number = re.match(r"\s*(10\^\d+|[\d.,]+)( billion| million)?", cell)
        if number:
            scale = {" billion": 1e9, " million": 1e6}.get(number[2] or "", 1.0)
            text = number[1].replace(",", "").replace("^", "e").replace("10e", "1e")
            found.append(float(text) * scale)
    return found


def test_capacity_page_computes_the_disk_space_of_brokers() -> None:
    """The figures follow from the topics' retention and replicas and the page's assumptions."""
    page = (tools.ROOT / "docs" / "explanation" / "capacity.md").read_text(encoding="utf-8")
    section = page.partition("## Disk space on the brokers")[2].partition("\n## ")[0]
    specs = {
        name: yaml.safe_load((tools.ROOT / "topics" / f"{name}.yaml").read_text())["spec"]
        for name in ("documents", "unique", "duplicates", "fingerprints")
    }
    assert {specs[name]["config"]["retention.ms"] for name in ("unique", "duplicates")} == {-1}
    (replicas,) = {spec["replicas"] for spec in specs.values()}
    weeks = specs["documents"]["config"]["retention.ms"] / (30 * 86_400_000)
    page_kb, headers_kb, log_bytes = 5.0, 0.25, 193
    assert f"pages of {page_kb:g} kB" in section
    assert f"{log_bytes} bytes per document" in PAGES[0].read_text(encoding="utf-8")
    rows = [line for line in section.splitlines() if line.startswith("| 10^")]
    assert len(rows) == 3
    for row in rows:
        pages, *stated = figures(row)
        wanted = [
            pages * weeks * page_kb / 1e6 * replicas,
            pages * (page_kb + headers_kb) / 1e6 * replicas,
            pages * log_bytes / 1e9 * replicas,
        ]
        wanted.append(wanted[0] + 12 * (wanted[1] + wanted[2]))
        assert stated == pytest.approx(wanted, rel=0.03)


def test_capacity_page_stays_below_the_maximum_number_of_rows() -> None:
    page = (tools.ROOT / "docs" / "explanation" / "capacity.md").read_text(encoding="utf-8")
    table = page.partition("## Disk space on the brokers")[0]
    rows = [re.split(r"\s*\|\s*", line) for line in table.splitlines() if line.startswith("| 10^")]
    assert len(rows) == 4
    for cells in rows:
        assert figures(cells[5])[0] < NUMBERS_MAX < ROWS_MAX
    for text in (page, (tools.ROOT / "docs" / "handbook.md").read_text(encoding="utf-8")):
        assert f"{ROWS_MAX:,}" in text
    assert f"{NUMBERS_MAX / 1e9:g} billion" in (tools.ROOT / "README.md").read_text("utf-8")
