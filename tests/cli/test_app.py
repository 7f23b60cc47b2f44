"""Help, usage errors, exit codes: what every command has in common."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from stream_dedup import __main__ as program
from stream_dedup import __version__
from stream_dedup.cli import config as config_command
from stream_dedup.cli.app import PANELS, command_named
from stream_dedup.domain.extras import install_command
from stream_dedup.serving import single_role
from tests.cli.commands_page import commands_page
from tests.cli.running import Run
from tests.tiers import few

HEAVY = ("numba", "jieba", "confluent_kafka", "rocksdict", "numpy", "uvicorn", "structlog")


COMMANDS = sorted(tuple(name.split()) for names in PANELS.values() for name in names)
EXAMPLES = {" ".join(name): command_named(" ".join(name)).example for name in COMMANDS}


def run_in_child(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "stream_dedup", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


@pytest.mark.parametrize("arguments", [["--help"], ["dlq", "--help"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    """The overview and completion answer at once, because no command is loaded for them."""
    code = f"import sys; from stream_dedup.__main__ import main; assert main({arguments!r}) == 0; "
    code += f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"

    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert ended.stderr.strip() == "[]"
    assert "Usage" in ended.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_help_ends_with_an_example_that_parses(run: Run, command: tuple[str, ...]) -> None:
    """Each help says what the command does and ends with an example that parses."""
    ended = run(*command, "--help")

    assert ended.code == 0
    assert "Usage" in ended.out
    assert "\N{HORIZONTAL ELLIPSIS}" not in ended.out, "a column too narrow for its words"
    assert ended.err == ""
    example = EXAMPLES[" ".join(command)]
    assert "".join(f"Example: {example}".split()) in "".join(ended.out.split())
    words = shlex.split(example)
    assert (words[0], tuple(words[1 : 1 + len(command)])) == ("stream-dedup", command)
    assert run(*words[1:], "--help").code == 0
    assert run(*words[1:], "--no-such-option", "--help").code == 2


def test_the_commands_page_is_up_to_date() -> None:
    """Each command has a section with its help, example and options; the page in the repository is
    up to date."""
    page = (Path(__file__).parent.parent.parent / "docs" / "reference" / "commands.md").read_text(
        encoding="utf-8"
    )

    assert commands_page() == page
    assert EXAMPLES.keys() == {" ".join(command) for command in COMMANDS}
    for command in COMMANDS:
        assert f"### `{' '.join(command)}`\n" in page
    assert "- `-n, --limit <int>`: Exit after N decisions." in page
    assert "--stop-with-parent" not in page


@pytest.mark.parametrize("shell", few(["bash", "zsh", "fish"]))
def test_the_shell_completes(shell: str, tmp_path: Path) -> None:
    """`--install-completion` writes what the shell needs; then commands and options are completed,
    without heavy imports."""
    home = (
        os.environ | dict.fromkeys(("HOME", "ZDOTDIR"), str(tmp_path)) | {"SHELL": f"/bin/{shell}"}
    )
    home |= {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    installed = run_in_child("--install-completion", shell, env=home)
    assert installed.returncode == 0, installed.stderr
    written = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    assert "_STREAM_DEDUP_COMPLETE" in written

    typed = "stream-dedup topics a"
    variables = {"bash": {"COMP_WORDS": typed, "COMP_CWORD": "2"}}.get(
        shell, {"_TYPER_COMPLETE_ARGS": typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    )
    completed = run_in_child(env=home | variables | {"_STREAM_DEDUP_COMPLETE": f"complete_{shell}"})
    assert "apply" in completed.stdout
    assert "plan" not in completed.stdout.replace("explain", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["run"],
        ["run", "insight"],
        ["load"],
        ["check"],
        ["check", "x", "--format", "xml"],
        ["tap", "--limit", "0"],
        ["tap", "--only", "everything"],
        ["dlq", "show", "--stage", "decoding"],
        ["dlq", "redrive", "--stage", "decoding"],
        ["topics", "apply", "--partitions", "many"],
        ["rewind"],
        ["rewind", "0@1", "here"],
        ["rewind", "0@1", "unique-1@1"],
        ["config", "show", "--set", "group"],
        ["config", "show", "--set", "=x"],
        ["replay"],
    ],
)
def test_wrong_usage_ends_with_2(run: Run, arguments: list[str]) -> None:
    ended = run(*arguments)

    assert ended.code == 2
    assert "Traceback" not in ended.err + ended.out


def test_a_wrong_choice_is_a_sentence_without_the_name_of_a_python_error(run: Run) -> None:
    ended = run("check", "a.jsonl", "--compression", "lzma")
    assert "Invalid value for '--compression': 'lzma' is not one of 'zstd'" in ended.words


def test_a_configuration_error_exits_78_and_names_every_problem(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard error has a line for each problem and no traceback; standard output is empty."""
    monkeypatch.setenv("STREAM_DEDUP_HTP_PORT", "1")
    monkeypatch.setenv("STREAM_DEDUP_BATCH_DOCUMENTS", "0")

    for command in (
        ["run", "worker"],
        ["run", "all"],
        ["topics", "plan"],
        ["load", "-"],
        ["tap"],
        ["check", "-"],
        ["broker"],
    ):
        ended = run(*command)
        assert ended.code == 78, command
        assert ended.out == ""
        assert "did you mean STREAM_DEDUP_HTTP_PORT?" in ended.err
        assert "STREAM_DEDUP_BATCH_DOCUMENTS is '0', but must be at least 1." in ended.err
        assert "Traceback" not in ended.err


def test_debug_shows_the_traceback_too(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAM_DEDUP_LOG_LEVEL", "debug")

    ended = run("config", "show", "--set", "http_port=x")

    assert ended.code == 78
    assert "Traceback" in ended.err
    assert ended.err.rstrip().endswith("must be a whole number.")


@pytest.mark.parametrize(
    ("error", "codes", "expected_error"),
    [
        (
            ZeroDivisionError("odd\x1b[31m"),
            {1},
            "This is a bug in stream-dedup: ZeroDivisionError: odd\\x1b[31m.",
        ),
        (KeyboardInterrupt(), {1, 130}, ""),
    ],
)
def test_an_internal_error_has_a_traceback_and_ctrl_c_has_none(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    codes: set[int],
    expected_error: str,
) -> None:
    monkeypatch.setattr(config_command, "print_table", MagicMock(side_effect=error))

    ended = run("config", "show")

    assert ended.code in codes
    assert ("Traceback" in ended.err) == bool(expected_error)
    assert expected_error in ended.err


def test_ctrl_c_while_commands_are_loaded_exits_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loading takes up to a second, in which people press Ctrl-C."""

    class Loading(types.ModuleType):
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "stream_dedup.cli", Loading("stream_dedup.cli"))
    assert program.main(["version"]) == 130


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        *(
            (f"{name}=99", "http_port", "99")
            for name in ("http_port", "http-port", "HTTP_PORT", "STREAM_DEDUP_HTTP_PORT")
        ),
        ("kafka_bootstrap_servers=kafka:9093", "kafka_bootstrap_servers", "kafka:9093"),
        ("kafka.client.rack=a=b", "kafka.client.rack", "a=b"),
    ],
)
def test_set_accepts_every_spelling_of_a_name(run: Run, given: str, name: str, value: str) -> None:
    """Names as in the file, with hyphens, or as in the environment are the same setting; values may
    hold `=`."""
    assert run("config", "show", "--json", "--set", given).json[name] == value


def test_version_lists_the_program_and_its_libraries(run: Run) -> None:
    found = dict(line.split(maxsplit=1) for line in run("--version").out.splitlines())

    assert found["stream-dedup"] == __version__
    assert {"log-formats", "python", "confluent-kafka", "rocksdict", "numba", "jieba"} <= set(found)


class TestRoles:
    def test_the_last_log_line_of_a_role_has_its_error(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STREAM_DEDUP_HTTP_PORT", "0")
        monkeypatch.setenv("STREAM_DEDUP_FAILPOINT", "no-such-step")

        for role in ("worker", "index"):
            ended = run("run", role)
            last = json.loads(ended.err.splitlines()[-1])
            assert ended.code == 78
            assert (last["level"], last["role"], last["exit_code"]) == ("critical", role, 78)
            assert "STREAM_DEDUP_FAILPOINT" in last["event"]
            assert "exception" not in last

    def test_a_role_without_its_extra_names_all_missing_packages(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One log line with the packages and the command, and the exit code of what only an
        operator can mend."""
        for name in ("jinja2", "tantivy"):
            monkeypatch.setitem(sys.modules, name, None)

        ended = run("run", "search")

        (line,) = (json.loads(raw_line) for raw_line in ended.err.splitlines())
        assert (ended.code, line["exit_code"]) == (78, 78)
        assert "needs the packages jinja2 and tantivy" in line["event"]
        assert install_command("search") in line["event"]

    def test_a_fault_in_a_role_is_logged_with_its_traceback(
        self, run: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(single_role, "_run", MagicMock(side_effect=ZeroDivisionError("odd")))

        ended = run("run", "worker")

        (line,) = (json.loads(raw_line) for raw_line in ended.err.splitlines())
        assert ended.code == 1
        assert "internal error: ZeroDivisionError: odd" in line["event"]
        assert line["exception"][0]["exc_type"] == "ZeroDivisionError"

    def test_run_all_stops_everything_when_one_role_ends(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STREAM_DEDUP_HTTP_PORT", "0")
        monkeypatch.setenv("STREAM_DEDUP_FAILPOINT", "no-such-step")

        ended = run_in_child("run", "all")

        assert ended.returncode == 78
        assert "ended unexpectedly (exit code 78), so all roles are stopped" in ended.stderr
        assert "STREAM_DEDUP_FAILPOINT is 'no-such-step'" in ended.stderr


@pytest.mark.parametrize("words", [["--json"], ["--rows", "0"], ["--json", "--to", "out"]])
def test_a_closed_output_pipe_exits_141_without_a_message(tmp_path: Path, words: list[str]) -> None:
    """A closed pipe ends the command as SIGPIPE ends `cat`: exit code 128 + 13, no message."""
    rows = [
        json.dumps({"id": f"{number}" * 20, "text": f"a text {number % 7}"})
        for number in range(2000)
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    command = [sys.executable, "-m", "stream_dedup", "check", str(tmp_path / "a.jsonl"), *words]
    environment = {name: os.environ[name] for name in os.environ if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path, env=environment
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        if "--to" not in words:
            child.stdout.readline()
        child.stdout.close()
        errors = child.stderr.read()
    assert (child.returncode, errors) == (141, b"")


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="/dev/full, a disk that is always full, is Linux's"
)
@pytest.mark.parametrize(
    "words", [["--version"], ["check", "a.jsonl"], ["check", "a.jsonl", "--json"]]
)
def test_output_on_a_full_disk_exits_1_with_one_sentence(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n' * 500)
    command = [sys.executable, "-m", "stream_dedup", *words]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, check=False
        )
    assert (ended.returncode, ended.stderr) == (
        1,
        (
            "The output is incomplete: No space left on device. Run the command again once that "
            "is fixed.\n"
        ),
    )
