"""What a release is made of: one version in every file, notes, workflows, wheels with kernels."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from stream_dedup.domain.version import __version__
from tests import programs
from tests.deploy import rules, tools
from tests.deploy.test_image import passes
from tests.test_package import build, clean_python, run

ROOT = tools.ROOT
GITHUB = ROOT / ".github"
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in sorted((GITHUB / "workflows").glob("*.yaml"))
}
# Commands that workflows run besides our make targets and scripts.
SHELL = {"mkdir", "touch", "echo"}


@pytest.fixture
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, workflow in WORKFLOWS.items():
        for job, content in workflow["jobs"].items():
            yield from ((f"{name}: {job}", step) for step in content["steps"])


def test_every_file_names_one_version(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with another version is reported; Helm and Python write candidates differently."""
    assert release.check(None) == []
    assert (release.as_semantic("1.0.0rc1"), release.as_semantic("1.2.3")) == ("1.0.0-rc1", "1.2.3")

    monkeypatch.setattr(release, "version", lambda: "9.9.9")
    problems = release.check(None)
    for where in (
        "chart's version",
        "appVersion",
        "manifests.yaml",
        "CHANGELOG.md",
    ):
        assert any(where in problem for problem in problems), where


def test_a_tag_needs_its_version_and_finished_notes(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag of another version is refused, and one whose notes say that it is not released."""
    tag = f"v{__version__}"
    for heading, problems in (
        (__version__ + ", not released yet", 1),
        (__version__ + ", 2027-01-31", 0),
    ):
        monkeypatch.setattr(
            release, "sections", lambda heading=heading: {heading: "- It is there."}
        )
        assert len(release.check(tag)) == problems
        assert any("its tag is v" in problem for problem in release.check("v0.0.1"))


def test_release_notes_are_a_section_of_the_changelog(
    release: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notes contain one version's section; on GitHub links lead to the files of the tag."""
    new = "- [New](docs/new.md#a) ([x](https://x.example))"
    sections = {"2.0.0, 2027-01-31": new, "1.0.0": "old"}
    monkeypatch.setattr(release, "sections", lambda: sections)
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert release.notes("2.0.0") == "- [New](docs/new.md#a) ([x](https://x.example))\n"
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://forge.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "o/r")
    assert release.notes("2.0.0").startswith(
        "- [New](https://forge.example/o/r/blob/v2.0.0/docs/new.md#a) ([x](https://x.example))"
    )
    with pytest.raises(SystemExit, match="has no section"):
        release.notes("3.0.0")


def test_github_files_match_their_schemas(tmp_path: Path) -> None:
    """Workflows, updates and forms match their schemas; a misspelt key does not."""
    for schema, files in (
        ("vendor.github-workflows", [*(GITHUB / "workflows").iterdir()]),
        ("vendor.dependabot", [GITHUB / "dependabot.yml"]),
        (
            "vendor.github-issue-forms",
            [path for path in (GITHUB / "ISSUE_TEMPLATE").iterdir() if path.name != "config.yml"],
        ),
        ("vendor.github-issue-config", [GITHUB / "ISSUE_TEMPLATE" / "config.yml"]),
    ):
        assert passes("check-jsonschema", "--builtin-schema", schema, *files)
    broken = tmp_path / "broken.yaml"
    broken.write_text((GITHUB / "workflows" / "test.yaml").read_text().replace("runs-on", "run-on"))
    assert not passes("check-jsonschema", "--builtin-schema", "vendor.github-workflows", broken)


def test_what_workflows_run_exists() -> None:
    """Make targets and scripts exist, scripts parse, and jobs need jobs that exist."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for where, step in steps():
        for command in re.split(r"&&|\n", step.get("run", "")):
            words = shlex.split(command)
            if not words:
                continue
            if words[0] == "make":
                assert words[1] in targets, f"{where}: {command}"
            elif words[0].startswith("deploy/"):
                script = ROOT / words[0]
                assert os.access(script, os.X_OK), f"{where}: {command}"
                subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)
            else:
                assert words[0] in SHELL, f"{where}: {command}"
    for name, workflow in WORKFLOWS.items():
        for job, content in workflow["jobs"].items():
            needed = content.get("needs", [])
            assert set([needed] if isinstance(needed, str) else needed) <= set(workflow["jobs"]), (
                f"{name}: {job}"
            )


def test_workflows_have_only_the_permissions_they_need() -> None:
    """Only jobs that sign or publish have an identity; each action is named by one commit."""
    for name, workflow in WORKFLOWS.items():
        assert workflow["permissions"] == {"contents": "read"}, name
        signing_jobs = {
            job
            for job, content in workflow["jobs"].items()
            if "id-token" in content.get("permissions", {})
        }
        assert signing_jobs == ({"pypi", "manifest", "chart"} if name == "release" else set())
    text = "".join(path.read_text() for path in (GITHUB / "workflows").iterdir())
    named = re.findall(r"uses: (\S+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)$", text, re.MULTILINE)
    assert len(named) == text.count("uses:")
    assert len(set(named)) == len({action for action, _, _ in named})
    triggers = WORKFLOWS["release"][True]  # YAML parses `on` as true
    assert triggers == {"push": {"tags": ["v*"]}}


def test_supported_versions_are_the_tested_versions(
    manifests: list[rules.Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = {
        cells[1].strip(): cells[2]
        for line in (ROOT / "SECURITY.md").read_text().splitlines()
        if len(cells := line.split("|")) == 5
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pythons = re.findall(r"3\.\d+", rows["Python"])
    assert pythons == [
        classifier.rpartition(" ")[2]
        for classifier in project["classifiers"]
        if re.search(r"Python :: 3\.\d+$", classifier)
    ]
    assert project["requires-python"] == f">={pythons[0]}"
    assert WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"] == pythons
    assert WORKFLOWS["release"]["jobs"]["wheel"]["strategy"]["matrix"]["python"] == pythons
    jars = (ROOT / "stream_dedup" / "broker" / "jars.lock").read_text()
    found = re.search(r"org\.apache\.kafka:kafka-clients:(\d+\.\d+)\.", jars)[1]
    assert found == re.findall(r"\d+\.\d+", rows["Apache Kafka"])[0]

    first, last = re.findall(r"1\.(\d+)", rows["Kubernetes"])
    chart = yaml.safe_load((ROOT / "deploy" / "chart" / "Chart.yaml").read_text())
    assert chart["kubeVersion"] == f">=1.{first}.0-0"
    assert f"1.{last}" == rules.KUBERNETES
    for minor in range(int(first), int(last)):
        monkeypatch.setattr(rules, "KUBERNETES", f"1.{minor}")
        assert rules.schema(manifests) == [], f"1.{minor}"


def run_with_stand_ins(folder: Path, script: str, *arguments: str, **answers: str) -> list[str]:
    """Run a script with stand-ins for the programs that it calls; return the calls."""
    for name, answer in answers.items():
        program = folder / name
        program.write_text(f'#!/bin/sh\necho "{name} $*" >> {folder}/called\n{answer}\n')
        program.chmod(0o755)
    environment = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "HOME": str(folder)}
    programs.run([ROOT / "deploy" / script, *arguments], env=environment)
    return (folder / "called").read_text().splitlines()


@pytest.mark.parametrize(("version", "is_latest"), [("1.0.0rc1", False), ("1.0.0", True)])
def test_the_image_gets_one_tag_and_a_signature(
    version: str, is_latest: bool, tmp_path: Path
) -> None:
    """One tag names both architectures by digest; a candidate does not become `latest`."""
    digests = tmp_path / "digests"
    digests.mkdir()
    for letter in "ab":
        (digests / (letter * 64)).touch()
    command = ("publish-image.sh", "r.example/i", version, str(digests))
    made, _, signed = run_with_stand_ins(
        tmp_path, *command, docker=f"echo sha256:{'c' * 64}", cosign=""
    )

    assert f"--tag r.example/i:{version}" in made
    assert ("--tag r.example/i:latest" in made) == is_latest
    assert all(f"r.example/i@sha256:{letter * 64}" in made for letter in "ab")
    assert signed == f"cosign sign --yes r.example/i@sha256:{'c' * 64}"


def test_the_chart_is_pushed_and_signed(tmp_path: Path) -> None:
    """The digest that `helm push` prints is signed; a failed push shows the reason."""
    package = "[ $1 = package ] && mkdir -p build/chart && touch build/chart/stream-dedup-1.tgz"
    helm = f"{package}; [ $1 = push ] && echo Digest: sha256:{'d' * 64}; true"
    _, pushed, signed = run_with_stand_ins(
        tmp_path, "publish-chart.sh", "r.example/charts", helm=helm, cosign=""
    )

    assert pushed == "helm push build/chart/stream-dedup-1.tgz oci://r.example/charts"
    assert signed == f"cosign sign --yes r.example/charts/stream-dedup@sha256:{'d' * 64}"
    refused = f"{package}; [ $1 = package ] || {{ echo unauthorized; exit 1; }}"
    with pytest.raises(AssertionError, match="unauthorized"):
        run_with_stand_ins(tmp_path, "publish-chart.sh", "r.example/charts", helm=refused)


@pytest.mark.parametrize(("tag", "is_candidate"), [("v1.0.0rc1", True), ("v1.0.0", False)])
def test_a_candidate_is_published_as_a_prerelease(
    tag: str, is_candidate: bool, tmp_path: Path
) -> None:
    (called,) = run_with_stand_ins(tmp_path, "publish-notes.sh", tag, "notes.md", gh="")

    assert called.startswith(f"gh release create {tag} --verify-tag")
    assert ("--prerelease" in called) == is_candidate


def test_a_wheel_with_kernels_is_for_one_platform(
    release: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels are where the program looks, and the name has the Python version and platform."""
    kernels = tmp_path / "kernels" / "fingerprinting.prints-0-0"
    kernels.mkdir(parents=True)
    (kernels / "one.kernel").write_bytes(b"code")
    monkeypatch.setenv("STREAM_DEDUP_WHEEL_KERNELS", str(kernels.parent))
    monkeypatch.setenv("STREAM_DEDUP_WHEEL_TAG", release.wheel_tag())

    made = build(ROOT, tmp_path / "dist", "wheel")

    assert made.name.endswith(f"-{release.wheel_tag()}.whl")
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        assert "stream_dedup/kernels/compiled_kernels/fingerprinting.prints-0-0/one.kernel" in names
        (about,) = (
            archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL")
        )
    assert "Root-Is-Purelib: false" in about


@pytest.mark.long
def test_the_kernels_of_a_wheel_are_used(release: ModuleType, tmp_path: Path) -> None:
    """Installed elsewhere, the first fingerprint compiles nothing."""
    release.wheel(tmp_path / "dist")
    (made,) = (tmp_path / "dist").glob("*.whl")
    python = clean_python(made, tmp_path / "clean")

    output = run(python, tmp_path, "-c", _USE, XDG_CACHE_HOME=str(tmp_path / "empty"))

    assert output.split() == ["0"]


_USE = """
import stream_dedup
from stream_dedup.kernels import compiled
stream_dedup.fingerprint("one text of a few words, and no more")
assert compiled.statistics().loaded
print(compiled.statistics().compiled)
"""
