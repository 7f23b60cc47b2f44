"""The README's commands run as written, and print the output that it shows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stream_dedup.serving.ports import free_ports
from stream_dedup.settings.properties import child_environment
from tests import programs
from tests.waiting import wait_until

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")

# The output of a background command after which the next command can run.
READY = {
    "stream-dedup broker": "The broker runs until",
    "stream-dedup run all": "partitions assigned",
}


def commands() -> list[str]:
    blocks = re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL)
    return [
        line.removeprefix("$ ")
        for block in blocks
        for line in block.splitlines()
        if line.startswith("$ ")
    ]


def without_trailing_space(shown: str) -> str:
    return "\n".join(line.rstrip() for line in shown.strip().splitlines())


def test_the_readme_names_both_commands_first() -> None:
    """Another test runs them on a fresh machine."""
    assert commands()[:2] == ["make demo", "make test"]


@pytest.mark.thorough
@pytest.mark.broker
def test_the_commands_run_one_after_another(tmp_path: Path) -> None:
    """Every command after those two exits with 0, one after another in one shell."""
    first = free_ports(5)[0]
    ports = {
        "9092": first,
        "8080": first + 1,
        "8081": first + 2,
    }  # `run all` gives its roles the ports after it
    # Only ports and the state folder differ from what the reader types.
    environment = child_environment({}) | {
        "STREAM_DEDUP_HTTP_PORT": str(ports["8080"]),
        "STREAM_DEDUP_STATE_DIR": str(tmp_path / "state"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    shell = subprocess.Popen(
        ["bash"], cwd=tmp_path, env=environment, text=True, start_new_session=True, **streams
    )
    assert shell.stdin is not None
    shown = {}
    try:
        for number, command in enumerate(commands()[2:]):
            typed = command
            for port, free_port in ports.items():
                typed = typed.replace(port, str(free_port))
            log, ended = tmp_path / f"{number}.log", tmp_path / f"{number}.ended"
            is_background = typed.endswith(" &")
            if is_background:
                line = f"{typed.removesuffix(' &')} > {log} 2>&1 &\n"
            else:
                line = f"{typed} > {log} 2>&1; echo $? > {ended}.new; mv {ended}.new {ended}\n"
            shell.stdin.write(line)
            shell.stdin.flush()
            if is_background:
                ready = next(text for start, text in READY.items() if command.startswith(start))
                wait_until(
                    lambda log=log, ready=ready: log.exists() and ready in log.read_text(),
                    f"{command} is ready",
                )
            else:
                wait_until(ended.exists, f"{command} has ended")
                assert ended.read_text().strip() == "0", f"{command}:\n{log.read_text()}"
            shown[command] = log.read_text() if log.exists() else ""
    finally:
        os.killpg(shell.pid, signal.SIGTERM)
        shell.wait(30)
        for log in sorted(tmp_path.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-1500:]}")
    tapped = next(text for command, text in shown.items() if command.startswith("stream-dedup tap"))
    assert tapped.count("duplicate") >= 7
    checked = next(
        text for command, text in shown.items() if command.startswith("stream-dedup check")
    )
    assert "duplicate" in checked
    assert without_trailing_space(checked) in README, (
        "the README shows another output of `check` than the program gives"
    )


# -- its first two commands on a machine with nothing prepared: an empty home, no Java, no virtual
# environment


JAVA = ("java", "keytool", "mvn", "jgo", "uv")


def tools_without_java(folder: Path) -> Path:
    """Return a folder with all tools on PATH except Java and those that can install it."""
    folder.mkdir()
    for directory in os.environ["PATH"].split(os.pathsep):
        for tool in Path(directory).glob("*"):
            link = folder / tool.name
            if not tool.name.startswith((*JAVA, "python")) and not link.exists() and tool.is_file():
                link.symlink_to(tool)
    # The interpreter itself, not a version manager's stand-in, which looks for its files in HOME.
    (folder / "python3").symlink_to(
        Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    )
    return folder


@pytest.mark.broker
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_demo_and_test_on_a_fresh_machine(tmp_path: Path) -> None:
    if os.environ.get("BROKER"):
        pytest.skip(
            "BROKER is set: nothing of our own is started, so there is nothing to prove here"
        )
    clone = tmp_path / "clone"
    listed = programs.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, clone / name)
    home = tmp_path / "home"
    home.mkdir()
    forgotten = ("STREAM_DEDUP_", "XDG_", "KAFKA_", "PYENV", "PYTEST", "COV_", "VIRTUAL_ENV")
    forgotten += ("PYTHONPATH", "PYTHONHOME", "JAVA_HOME", "CI", "MAKEFLAGS", "MAKEOVERRIDES")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name != "ARGS" and not name.startswith(forgotten)
    }
    environment |= {"HOME": str(home), "PATH": str(tools_without_java(tmp_path / "bin"))}
    assert shutil.which("java", path=environment["PATH"]) is None

    def make(*arguments: str, **more: str) -> str:
        line = ["make", *arguments]
        return programs.run(line, seconds=1700, cwd=clone, env=environment | more).stdout

    shown = make("demo")
    assert "in = unique + duplicates + dead letters" in shown
    assert "false drops 0 of" in shown

    tested = make(
        "test",
        "ARGS=tests/test_layers.py tests/broker/test_main_path.py -k floors\\ or\\ twelve",
        CI="true",
    )
    assert " passed" in tested
    assert "skipped" not in tested
