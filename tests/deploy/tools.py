"""The real helm and promtool; `make deploy-tools` fetches them, `make manifests` uses helm.

A program on the path of the same major version is used. Otherwise Go builds helm at the version of
`deploy/tools/go.mod`, checked against its `go.sum`, and promtool is Debian's, from its signed
package. A missing tool raises `MissingToolError` with the reason.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import platformdirs
from filelock import FileLock

from tests import programs

ROOT = Path(__file__).parent.parent.parent
MODULE = ROOT / "deploy" / "tools"
CHART = ROOT / "deploy" / "chart"
MANIFESTS = ROOT / "deploy" / "manifests.yaml"
# A busy machine can take that long to compile Kubernetes' client.
_MINUTES_MAX = 60
_HEAD = """\
# The Helm chart with its own values, for people without Helm: change image and bootstrap servers, and apply it to the namespace
# stream-dedup. Made by `make manifests`; do not edit it in this repository.
"""


class MissingToolError(Exception):
    """A tool is not available on this machine; the message has the reason."""


def _folder() -> Path:
    folder = platformdirs.user_cache_path("stream-dedup") / "tools"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(
    command: list[str],
    what: str,
    environment: dict[str, str] | None = None,
    folder: Path | None = None,
) -> None:
    try:
        seconds = _MINUTES_MAX * 60
        done = programs.run(command, code=None, seconds=seconds, env=environment, cwd=folder)
    except subprocess.TimeoutExpired as error:
        raise MissingToolError(f"{what} took more than {_MINUTES_MAX} minutes") from error
    if done.returncode:
        raise MissingToolError(f"{what} failed: {done.stderr.strip()[-800:]}")


def _build_helm() -> Path:
    """Return the path of helm, built if need be: two minutes of CPU."""
    pins = hashlib.blake2b(
        (MODULE / "go.mod").read_bytes() + (MODULE / "go.sum").read_bytes(), digest_size=8
    ).hexdigest()
    program = _folder() / f"helm-{pins}"
    with FileLock(f"{program}.lock"):
        if program.exists():
            return program
        go = shutil.which("go")
        if go is None:
            raise MissingToolError("there is no Go to build helm with")
        settings = {
            "CGO_ENABLED": "0",
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
            "GOWORK": "off",
        }
        built = program.with_suffix(".new")
        # It renders a few files: the compiler's optimisations cost a quarter of the build and gain
        # nothing.
        plain = ["-gcflags=all=-N -l", "-ldflags=-s -w"]
        _run(
            [go, "build", "-C", str(MODULE), *plain, "-o", str(built), "helm.sh/helm/v3/cmd/helm"],
            "building helm",
            os.environ | settings,
        )
        built.replace(program)
    return program


def helm() -> Path:
    """Return the path of the installed helm if it is version 3, else of the helm built here."""
    found = shutil.which("helm")
    if found is not None:
        done = programs.run([found, "version"], code=None)
        if re.search(r"\bv3\.\d", done.stdout):
            return Path(found)
    return _build_helm()


def promtool() -> Path:
    """Return the path of promtool, from the path or from Debian's package."""
    found = shutil.which("promtool")
    if found:
        return Path(found)
    folder = _folder() / "prometheus"
    program = folder / "usr" / "bin" / "promtool"
    with FileLock(f"{folder}.lock"):
        if program.exists():
            return program
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise MissingToolError(
                "promtool is not on the path, and this is no Debian to take it from"
            )
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("state/lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        # With lists and cache of its own, apt changes nothing on the machine and needs no root.
        state, cache = f"Dir::State={folder / 'state'}", f"Dir::Cache={folder / 'cache'}"
        options = ["-o", state, "-o", cache, "-o", "APT::Sandbox::User="]
        _run(["apt-get", *options, "update"], "reading Debian's package lists")
        _run(
            ["apt-get", *options, "download", "prometheus"],
            "downloading Debian's prometheus",
            folder=folder,
        )
        (package,) = folder.glob("prometheus_*.deb")
        unpacked = folder / "unpacked"
        _run(["dpkg-deb", "--extract", str(package), str(unpacked)], "unpacking it")
        shutil.rmtree(folder / "state")
        shutil.rmtree(folder / "cache")
        package.unlink()
        (unpacked / "usr").replace(folder / "usr")
    return program


def template(*arguments: str, release: str = "stream-dedup") -> subprocess.CompletedProcess[str]:
    fixed = ("--namespace", "stream-dedup", "--kube-version", "1.35.0")
    command = [helm(), "template", release, CHART, *fixed, *arguments]
    return programs.run(command, code=None)


def manifests() -> str:
    """Return the content of `deploy/manifests.yaml`.

    Raises:
        MissingToolError: there is no helm, or it refuses the chart.
    """
    done = template("--skip-tests")
    if done.returncode:
        raise MissingToolError(f"helm template failed: {done.stderr}")
    return _HEAD + done.stdout


def main(arguments: list[str]) -> int:
    """Fetch all tools and print their paths; with `manifests`, write the manifests."""
    try:
        if arguments == ["manifests"]:
            MANIFESTS.write_text(manifests(), encoding="utf-8")
        else:
            print(helm(), promtool(), sep="\n")
    except MissingToolError as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
