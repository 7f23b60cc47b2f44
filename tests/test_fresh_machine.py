"""The README's two commands on a machine with nothing prepared: an empty home, no Java, no virtual environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
JAVA = ("java", "keytool", "mvn", "jgo", "uv")


def tools_without_java(folder: Path) -> Path:
    """Return a folder that holds everything on PATH but Java and what could bring it."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in Path(directory).glob("*"):
            link = folder / tool.name
            if not tool.name.startswith((*JAVA, "python")) and not link.exists() and tool.is_file():
                link.symlink_to(tool)
    # The interpreter itself, not a version manager's stand-in, which looks for its files in HOME.
    (folder / "python3").symlink_to(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    return folder


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_demo_and_test_on_a_fresh_machine(tmp_path: Path) -> None:
    if os.environ.get("BROKER"):
        pytest.skip("BROKER is set: nothing of our own is started, so there is nothing to prove here")
    clone = tmp_path / "clone"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    home = tmp_path / "home"
    home.mkdir()
    forgotten = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "JAVA_HOME", "CI", "MAKEFLAGS", "MAKEOVERRIDES", "ARGS")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in forgotten and not name.startswith(("STREAM_DEDUP_", "XDG_", "KAFKA_", "PYENV", "PYTEST", "COV_"))
    }
    environment |= {"HOME": str(home), "PATH": str(tools_without_java(tmp_path / "bin"))}
    assert shutil.which("java", path=environment["PATH"]) is None

    def make(*arguments: str, **more: str) -> str:
        done = subprocess.run(
            ["make", *arguments], cwd=clone, env=environment | more, capture_output=True, text=True, timeout=1700, check=False
        )
        assert done.returncode == 0, f"make {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    shown = make("demo")
    assert "in = unique + duplicates + dead letters" in shown
    assert "false drops 0 of" in shown

    tested = make("test", "ARGS=tests/test_floors.py tests/broker/test_main_path.py -k floors\\ or\\ twelve", CI="true")
    assert " passed" in tested
    assert "skipped" not in tested
