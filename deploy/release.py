"""What a release is made of, from files of this repository: `make release-check`, `make
release-notes`, `make wheel`.

`check [TAG]`: every file names one version; with a tag, that one, and its notes are finished.
`notes VERSION`: what CHANGELOG.md says of a version, as Markdown. `wheel`: one with the kernels for
this family of processors, in dist/
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
_UNFINISHED = ", not released yet"
# What numba's own wheels ask for, without which ours would not run either.
_SYSTEMS = {"linux": "manylinux_2_27", "darwin": "macosx_11_0"}


def version() -> str:
    """Return the version of the program."""
    return _one(ROOT / "stream_dedup" / "domain" / "version.py", r'__version__ = "([^"]+)"')


def _one(path: Path, pattern: str) -> str:
    found = re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    if len(found) != 1:
        raise SystemExit(
            f"{path.relative_to(ROOT)} names {len(found)} versions where one is looked for "
            f"({pattern})."
        )
    return str(found[0])


def as_semantic(python_version: str) -> str:
    """Return a version of Python's as Helm writes it: 1.0.0rc1 is 1.0.0-rc1."""
    return re.sub(r"^(\d+\.\d+\.\d+)((?:a|b|rc)\d+)$", r"\1-\2", python_version)


def named_otherwise(wanted: str) -> list[str]:
    """Return sentences about files that name another version."""
    chart, found = ROOT / "deploy" / "chart" / "Chart.yaml", {}
    found["the chart's version"] = (_one(chart, r"^version: (\S+)$"), as_semantic(wanted))
    found["the chart's appVersion"] = (_one(chart, r"^appVersion: (\S+)$"), wanted)
    manifests = (ROOT / "deploy" / "manifests.yaml").read_text(encoding="utf-8")
    for tag in set(re.findall(r"image: stream-dedup:(\S+)$", manifests, re.MULTILINE)):
        found["deploy/manifests.yaml"] = (tag, wanted)
    return [
        f"{where} names {has}, and should name {should}."
        for where, (has, should) in found.items()
        if has != should
    ]


def sections() -> dict[str, str]:
    """Return the text of each version in CHANGELOG.md by its heading, the newest first."""
    parts = re.split(
        r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    return {
        heading.strip(): text.strip()
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
    }


def notes(wanted: str) -> str:
    """Return what is told of a version; where a workflow runs it, links lead to the files of the
    tag.

    Raises:
        SystemExit: CHANGELOG.md tells nothing of it.
    """
    for heading, text in sections().items():
        if re.split(r"[,\s]", heading)[0] == wanted:
            names = (
                os.environ.get("GITHUB_SERVER_URL", ""),
                os.environ.get("GITHUB_REPOSITORY", ""),
            )
            page = "/".join([*names, "blob", f"v{wanted}", ""]) if all(names) else ""
            return re.sub(r"\]\((?!https?:|#)([^)]+)\)", rf"]({page}\1)", text) + "\n"
    raise SystemExit(f"CHANGELOG.md has no section `## {wanted}`.")


def check(tag: str | None) -> list[str]:
    """Return sentences about what keeps a release from being made."""
    wanted = version()
    problems = named_otherwise(wanted)
    newest = next(iter(sections()))
    if re.split(r"[,\s]", newest)[0] != wanted:
        problems.append(
            f"The newest section of CHANGELOG.md is {newest!r}, and the program is {wanted}."
        )
    if tag is None:
        return problems
    if tag != f"v{wanted}":
        problems.append(f"The tag is {tag}, and the program is {wanted}: its tag is v{wanted}.")
    if newest.endswith(_UNFINISHED):
        problems.append(
            f"CHANGELOG.md says {newest!r}; name the day instead, as in `## {wanted}, 2027-01-31`."
        )
    return problems


def wheel_tag() -> str:
    """Return the tag of a wheel whose kernels were made by this Python on this machine."""
    system = _SYSTEMS.get(sys.platform)
    if system is None:
        raise SystemExit(
            f"Kernels are made ahead for Linux and macOS, not {sys.platform}; `make dist` makes a "
            "wheel for all."
        )
    python = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    return f"{python}-{python}-{system}_{platform.machine()}"


def wheel(target: Path) -> None:
    """Compile every kernel for the baseline of this family, and make a wheel that holds them."""
    program = Path(sysconfig.get_path("scripts")) / "stream-dedup"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, "compile", "--to", folder], check=True)
        kernels = {
            "STREAM_DEDUP_WHEEL_KERNELS": f"{folder}/kernels",
            "STREAM_DEDUP_WHEEL_TAG": wheel_tag(),
        }
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | kernels)


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit code."""
    match arguments:
        case ["check", *tags] if len(tags) < 2:
            problems = check(tags[0] if tags else None)
            print(
                "\n".join(problems) or f"Every file names {version()}.",
                file=sys.stderr if problems else sys.stdout,
            )
            return 1 if problems else 0
        case ["notes", wanted]:
            print(notes(wanted), end="")
        case ["wheel"]:
            wheel(ROOT / "dist")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
