"""The real kustomize, helm and promtool, kept in the user's cache directory; `make deploy-tools`
fetches them ahead.

Invariants: a program on the path of the same major version is used. Otherwise kustomize and helm
are built by Go from the module proxy at the versions of `deploy/tools/go.mod` and
`deploy/tools/helm/go.mod`, and Go checks every module against the `go.sum` beside it, and promtool
is Debian's, taken from its signed package without installing it. What is missing is a
`MissingToolError` whose sentence says why.
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

ROOT = Path(__file__).parent.parent.parent
MODULE = ROOT / "deploy" / "tools"
# A busy machine compiles Kubernetes' client for that long.
_MINUTES_MAX = 60


class MissingToolError(Exception):
    """A tool cannot be had on this machine, and why."""


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
        done = subprocess.run(
            command,
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_MINUTES_MAX * 60,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MissingToolError(f"{what} took more than {_MINUTES_MAX} minutes") from error
    if done.returncode:
        raise MissingToolError(f"{what} failed: {done.stderr.strip()[-800:]}")


def _built(name: str, module: Path, package: str) -> Path:
    """Return the path of a Go program, built if need be: one to three minutes on two idle cores."""
    pins = hashlib.blake2b(
        (module / "go.mod").read_bytes() + (module / "go.sum").read_bytes(), digest_size=8
    ).hexdigest()
    program = _folder() / f"{name}-{pins}"
    with FileLock(f"{program}.lock"):
        if program.exists():
            return program
        go = shutil.which("go")
        if go is None:
            raise MissingToolError(f"there is no Go to build {name} with")
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
            [go, "build", "-C", str(module), *plain, "-o", str(built), package],
            f"building {name}",
            os.environ | settings,
        )
        built.replace(program)
    return program


def _on_the_path(name: str, major: str) -> Path | None:
    """Return a program that is installed, if `version` says that it is of that major version."""
    found = shutil.which(name)
    if found is None:
        return None
    said = subprocess.run(
        [found, "version"], capture_output=True, text=True, timeout=60, check=False
    )
    return Path(found) if re.search(rf"\b{major}\.\d", said.stdout) else None


def kustomize() -> Path:
    """Return the path of kustomize."""
    return _on_the_path("kustomize", "v5") or _built(
        "kustomize", MODULE, "sigs.k8s.io/kustomize/kustomize/v5"
    )


def helm() -> Path:
    """Return the path of helm."""
    return _on_the_path("helm", "v3") or _built("helm", MODULE / "helm", "helm.sh/helm/v3/cmd/helm")


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
        own = [
            "-o",
            f"Dir::State={folder / 'state'}",
            "-o",
            f"Dir::Cache={folder / 'cache'}",
            "-o",
            "APT::Sandbox::User=",
        ]
        _run(["apt-get", *own, "update"], "reading Debian's package lists")
        _run(
            ["apt-get", *own, "download", "prometheus"],
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


def render(folder: Path) -> str:
    """Return what `kustomize build` makes of a folder, as YAML."""
    done = subprocess.run(
        [str(kustomize()), "build", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise AssertionError(f"kustomize build {folder}: {done.stderr}")
    return done.stdout


def main() -> int:
    """Fetch all and say where they are."""
    try:
        print(kustomize(), helm(), promtool(), sep="\n")
    except MissingToolError as error:
        print(f"{error}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
