"""The package as users get it: built from the sdist, installed into a clean environment."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from stream_dedup import __version__
from stream_dedup.domain import extras
from tests import programs

ROOT = Path(__file__).parent.parent
KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "XDG_CACHE_HOME", "STREAM_DEDUP_CACHE_DIR")


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a wheel or an sdist with the backend of pyproject.toml, without any registry."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    programs.run(command, seconds=120, cwd=source)
    (found,) = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    # By the system's tar: Python's asks for a filter from 3.12 on, and 3.11.2, which Debian has,
    # knows none.
    subprocess.run(["tar", "-xf", build(ROOT, folder, "sdist"), "-C", folder], check=True)
    return folder / f"crawl_dedup-{__version__}"


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(sdist, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clean_python(wheel, tmp_path_factory.mktemp("clean"))


def clean_python(wheel: Path, folder: Path) -> Path:
    """Return the interpreter of a clean environment with the wheel and this one's libraries."""
    has_pip = (
        importlib.util.find_spec("pip") is not None
    )  # then it works for the other, which need not unpack its own
    venv.create(folder, with_pip=not has_pip, symlinks=True)
    found = folder / "bin" / "python"
    pip = (
        [sys.executable, "-m", "pip", "--python", str(found)]
        if has_pip
        else [str(found), "-m", "pip"]
    )
    install = ("install", "--quiet", "--no-index", "--no-deps", "--disable-pip-version-check")
    programs.run([*pip, *install, wheel], seconds=120)
    where = programs.run([found, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"])
    # Paths in a .pth file come after the environment's own, and .pth files there are not followed:
    # not the sources' one.
    Path(where.stdout.strip(), "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return found


def run(python: Path, folder: Path, *arguments: str, **variables: str) -> str:
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | variables
    line = [python, "-I", *arguments]
    return programs.run(line, seconds=300, cwd=folder, env=environment).stdout


def test_the_sdist_has_what_the_tests_need(sdist: Path) -> None:
    """The sdist contains tracked files, except those that only this repository's CI needs."""
    for name in (
        "tests/conftest.py",
        "tests/golden/fingerprints.json",
        "tests/inputs/samples/ache.json",
        "topics/unique.yaml",
        "deploy/chart/files/topics/unique.yaml",
    ):
        assert (sdist / name).is_file(), name
    for name in (
        "docs/reference/api.md",
        "mkdocs.yml",
        "Makefile",
        "requirements.lock",
        "LICENSE",
        "README.md",
    ):
        assert (sdist / name).is_file(), name
    assert not (sdist / ".ci").exists()
    assert not (sdist / ".venv").exists()


def test_pages_name_the_installed_distribution() -> None:
    """Install commands use the distribution's name, not the command's."""
    name = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["name"]
    files = [*ROOT.glob("*.md")]
    for folder in ("stream_dedup", "docs", "examples", "deploy"):
        files += (ROOT / folder).rglob("*")
    named = {
        (path.name, found)
        for path in files
        if path.suffix in {".py", ".md", ".ipynb", ".toml"}
        for found in re.findall(
            r"pip install '?([\w-]+dedup)\b|\b([\w-]+dedup)\[[a-z]",
            path.read_text(encoding="utf-8"),
        )
    }
    assert len(named) > 5
    assert {found for _, pair in named for found in pair if found} == {name, extras._DISTRIBUTION}


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    """Types, data and topics are in it; tests, and machine code of this machine, are not."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(
            archive.read(f"crawl_dedup-{__version__}.dist-info/METADATA")
        )
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "stream_dedup").rglob("*")
        if path.is_file()
    }
    expected = {
        name for name in here if "__pycache__" not in name and "compiled_kernels" not in name
    }

    assert expected <= names
    assert "stream_dedup/py.typed" in names
    assert "stream_dedup/topic_files/unique.yaml" in names
    assert not any(
        name.startswith(("tests", "docs")) or "compiled_kernels" in name for name in names
    )
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra") or []) >= {"broker", "files", "html"}


@pytest.mark.thorough
def test_the_examples_run_in_a_clean_environment(python: Path, tmp_path: Path) -> None:
    """The API's examples use the package in the clean environment and no other."""
    shutil.copy(ROOT / "tests" / "examples.py", tmp_path)
    shutil.copy(ROOT / "docs" / "reference" / "api.md", tmp_path)

    home = run(python, tmp_path, "-c", "import stream_dedup; print(stream_dedup.__file__)").strip()
    output = run(python, tmp_path, "examples.py", "api.md")

    assert Path(home).is_relative_to(python.parent.parent)
    assert "examples" in output


@pytest.mark.thorough
def test_the_command_runs_in_a_clean_environment(python: Path, tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "pages.jsonl", tmp_path)
    program = str(python.with_name("stream-dedup"))

    versions = run(python, tmp_path, program, "--version").splitlines()
    judged = [
        json.loads(line)
        for line in run(python, tmp_path, program, "check", "pages.jsonl", "--json").splitlines()
    ]

    assert versions[0] == f"stream-dedup {__version__}"
    assert sum(row["verdict"] == "duplicate" for row in judged) == 7


@pytest.mark.thorough
def test_users_get_the_types_of_the_package(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from stream_dedup import Index, Print, Recipe, fingerprint\n"
        "one: Print = fingerprint('a', Recipe())\n"
        "answer = Index().add('1', one)\n"
        "reveal_type(answer.duplicate_of)\n"
        "fingerprint(1)\n"
    )

    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ROOT / ".mypy_cache"]
    ended = programs.run([*command, program], code=1, seconds=300, cwd=tmp_path)

    assert (
        'Revealed type is "str | None"' in ended.stdout
        or "Union[builtins.str, None]" in ended.stdout
    ), ended.stdout
    assert (
        'program.py:5: error: Argument 1 to "fingerprint" has incompatible type "int"'
        in ended.stdout
    )
    assert "Found 1 error" in ended.stdout


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            member for member in archive.namelist() if member.endswith(".dist-info/METADATA")
        )
        return email.message_from_bytes(archive.read(name))


def test_package_metadata_has_absolute_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If GitHub builds it, links and pictures lead to the files of the version's tag."""
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://forge.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "o/r")
    found = metadata_of(build(ROOT, tmp_path, "wheel"))
    tag = f"https://forge.example/o/r/%s/v{__version__}/"

    urls = dict(line.split(", ", 1) for line in found.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Source", "Documentation", "Changelog", "Issues"}
    assert urls["Changelog"] == tag % "blob" + "CHANGELOG.md"
    description = str(found.get_payload())
    addresses = re.findall(r"(!?)\[[^\]]*\]\(([^)#][^)]*)\)", description)
    assert len(addresses) >= 10
    assert any(is_picture for is_picture, _ in addresses)
    for is_picture, address in addresses:
        assert address.startswith(("https://", "http://")), address
        if address.startswith("https://forge.example"):
            assert address.startswith(tag % ("raw" if is_picture else "blob"))
            file = address.removeprefix(tag % ("raw" if is_picture else "blob"))
            assert (ROOT / file.partition("#")[0]).exists(), file


def test_the_licences_of_tables_come_with_the_package(wheel: Path) -> None:
    assert set(metadata_of(wheel).get_all("License-File", [])) == {"LICENSE", "NOTICE"}
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    tables = (ROOT / "stream_dedup" / "fingerprinting").rglob("*.txt")
    made = {
        path.name: path.read_text(encoding="utf-8").splitlines()[0]
        for path in tables
        if path.read_text(encoding="utf-8").startswith("#")
    }
    assert len(made) >= 5
    for name, head in made.items():
        assert name in notice
        source = re.search(r"Unicode|OpenCC [\d.]+", head)
        assert source is not None, head
        assert source[0] in notice
    assert "UNICODE LICENSE V3" in notice
