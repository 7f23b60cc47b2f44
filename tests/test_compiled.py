"""Compiled kernels are stored only in safe places and are never used when stale."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba.core.caching import NullCache
from numba.core.errors import NumbaError

import stream_dedup
from stream_dedup.fingerprinting import Fingerprinter, Recipe, format_prints
from stream_dedup.kernels import compiled
from stream_dedup.kernels.interrupts import delayed_interrupts
from tests import programs
from tests.fingerprinting import reference

SOURCE = Path(stream_dedup.__file__).parent / "fingerprinting" / "prints.py"


@pytest.fixture(autouse=True)
def _use_new_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Run each test with empty caches and with a new home and temporary directory."""
    for name in ("STREAM_DEDUP_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _clear_caches()
    yield
    _clear_caches()


def _clear_caches() -> None:
    for function in (
        compiled.cache_directory,
        compiled.readable_directories,
        compiled._sources_digest,
        compiled._imported,
    ):
        function.cache_clear()


FALLBACK = f"stream-dedup-kernels-{os.getuid()}"


@pytest.mark.parametrize(
    ("place", "parent"),
    [
        ("", "home/.cache/stream-dedup/kernels"),
        ("named", "named/kernels"),
        ("named 777", "home/.cache/stream-dedup/kernels"),
        ("named 770", "home/.cache/stream-dedup/kernels"),
        ("named 1777", "home/.cache/stream-dedup/kernels"),
        ("named link", "home/.cache/stream-dedup/kernels"),
        ("no home", FALLBACK),
        ("nowhere", None),
    ],
)
def test_kernels_are_kept_in_a_place_that_nobody_else_writes_to(
    place: str,
    parent: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cache files are pickles, so a place that others can write to is not used."""
    kernels = tmp_path / place / "kernels"
    if place.startswith("named"):
        monkeypatch.setenv("STREAM_DEDUP_CACHE_DIR", str(kernels.parent))
    if place.endswith(("7", "0")):
        kernels.mkdir(parents=True)
        kernels.chmod(int(place.split()[1], 8))
    elif place == "named link":
        (tmp_path / "elsewhere").mkdir()
        kernels.parent.mkdir()
        kernels.symlink_to(tmp_path / "elsewhere")
    elif place in ("no home", "nowhere"):
        (tmp_path / "home").write_text("a file")
    if place == "nowhere":
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "home"))
    directory = compiled.cache_directory(SOURCE)

    assert (directory and directory.parent) == (parent and tmp_path / parent)
    assert directory is None or directory.stat().st_mode & 0o077 == 0


def test_changed_sources_get_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change of any module that the kernel's module imports counts, also indirectly."""
    package = tmp_path / "stream_dedup"
    shutil.copytree(
        Path(stream_dedup.__file__).parent,
        package,
        ignore=shutil.ignore_patterns("compiled_kernels", "__pycache__"),
    )
    monkeypatch.setattr(compiled, "_PACKAGE", package)

    def digest() -> str:
        _clear_caches()
        return compiled._sources_digest(package / "fingerprinting" / "prints.py")

    before = digest()
    changed = {}
    for name in ("prints", "tokens", "jieba_data", "recipe", "normalise"):
        with (package / "fingerprinting" / f"{name}.py").open("a") as file:
            file.write("\n")
        changed[name], before = digest() != before, digest()

    imported = dict.fromkeys(("prints", "tokens", "jieba_data"), True)
    assert changed == imported | {"recipe": False, "normalise": False}


# Compute a fingerprint as a role does, or only a hash, which compiles faster; print how many
# kernels were loaded and compiled.
_CHILD = """
import json, logging, pathlib, sys, tempfile
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
from stream_dedup.kernels import compiled
if sys.argv[1]:
    compiled.SHIPPED = pathlib.Path(sys.argv[1])
tempfile.tempdir = sys.argv[2]
if sys.argv[3] == "print":
    from stream_dedup.fingerprinting import Fingerprinter, Recipe, format_prints
    made = format_prints(Fingerprinter(Recipe()).fingerprint(["The quick brown fox, 研究生命起源"]).prints, 128)[0].decode()
    for preset in ("chars", "shingles", "keywords"):
        Fingerprinter(Recipe(preset)).fingerprint(["The quick brown fox, 研究生命起源"])
    Fingerprinter(Recipe("vector")).fingerprint_vectors([[1.0, -2.0]])
else:
    import numpy
    from stream_dedup.fingerprinting.hashes import sip_hash
    made = int(sip_hash(numpy.zeros(3, numpy.uint8), numpy.uint64(1), numpy.uint64(2), 1, 3))
done = compiled.statistics()
print(json.dumps({"made": made, "loaded": done.loaded, "compiled": done.compiled}))
"""
HASH = reference.sip_hash(bytes(3), 1, 2)


def run(
    what: str, nowhere: Path, shipped: Path | str = "", **environment: str
) -> tuple[dict[str, object], str]:
    """Run a process that cannot write its home or temporary folder; return its output and log."""
    kept = {
        name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_CACHE_HOME"}
    }
    variables = {**kept, "XDG_CACHE_HOME": str(nowhere), **environment}
    line = [sys.executable, "-c", _CHILD, shipped, nowhere, what]
    done = programs.run(line, seconds=900, env=variables, cwd=Path(__file__).parents[1])
    result: dict[str, object] = json.loads(done.stdout)
    return result, done.stderr


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path below which nobody, not even root, can make a folder."""
    path = tmp_path_factory.mktemp("nowhere") / "file"
    path.write_text("")
    return path


@pytest.fixture(scope="module")
def precompiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    line = [sys.executable, "-m", "stream_dedup", "compile", "--to", folder, "--json"]
    done = programs.run(line, seconds=900)
    result = json.loads(done.stdout)
    assert result["directory"] == str(folder / "kernels")
    assert result["compiled"] >= result["kernels"] > 30
    assert (
        result["unused"] == []
    )  # a new kernel is to be called in `stream_dedup/serving/compile_kernels.py`
    return folder


@pytest.mark.thorough
def test_kernels_work_where_nothing_can_be_stored(nowhere: Path) -> None:
    """A kernel is compiled for this process only, with one warning."""
    result, log = run("hash", nowhere)

    assert result == {"made": HASH, "loaded": 0, "compiled": 1}
    assert log.count("WARNING") == 1
    assert "are compiled now, and again at every start" in log
    assert "stream-dedup compile" in log


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", ["STREAM_DEDUP_CACHE_DIR", "shipped"])
def test_kernels_made_ahead_are_used_in_place(place: str, precompiled: Path, nowhere: Path) -> None:
    """On a read-only root, without a home, no preset compiles or writes anything."""
    made = Fingerprinter(Recipe()).fingerprint(["The quick brown fox, 研究生命起源"])
    files = sorted(precompiled.rglob("*"))
    for file in files:
        file.chmod(0o555 if file.is_dir() else 0o444)
    is_shipped = place == "shipped"
    variables = {} if is_shipped else {place: str(precompiled)}
    result, log = run("print", nowhere, precompiled / "kernels" if is_shipped else "", **variables)

    assert result["made"] == format_prints(made.prints, 128)[0].decode()
    assert result["loaded"]
    assert result["compiled"] == 0
    assert "compiled" not in log
    assert sorted(precompiled.rglob("*")) == files


@pytest.mark.long
@pytest.mark.parametrize("what", ["other sources", "damaged", "open to others"])
def test_kernels_that_do_not_fit_are_not_used(
    what: str, precompiled: Path, nowhere: Path, tmp_path: Path
) -> None:
    """They are compiled in memory instead, with one warning."""
    shipped = tmp_path / "shipped"
    shutil.copytree(precompiled / "kernels", shipped)
    for folder in [shipped, *shipped.iterdir()]:
        folder.chmod(0o777 if what == "open to others" else 0o755)
    for folder in list(shipped.iterdir()):
        for file in folder.iterdir():
            file.chmod(0o644)
            if what == "damaged":
                file.write_bytes(file.read_bytes()[:-1])
        if what == "other sources":
            module, _, machine = folder.name.split("-")
            folder.rename(shipped / f"{module}-0123456789abcdef-{machine}")
    result, log = run("hash", nowhere, shipped)

    assert result == {"made": HASH, "loaded": 0, "compiled": 1}
    assert log.count("WARNING") == 1


@pytest.mark.thorough
def test_the_users_cache_serves_the_second_start(nowhere: Path, tmp_path: Path) -> None:
    """The first start logs what it compiles and where it stores it; the second only loads."""
    first, log = run("hash", nowhere, STREAM_DEDUP_CACHE_DIR=str(tmp_path))
    second, quiet = run("hash", nowhere, STREAM_DEDUP_CACHE_DIR=str(tmp_path))

    assert first == {"made": HASH, "loaded": 0, "compiled": 1}
    assert f"are stored in {tmp_path}" in log
    assert second == {"made": HASH, "loaded": 1, "compiled": 0}
    assert quiet == ""


def test_the_command_names_a_folder_that_cannot_be_written_to(nowhere: Path) -> None:
    line = [sys.executable, "-m", "stream_dedup", "compile", "--to", nowhere]
    done = programs.run(line, code=78)

    assert "The kernels cannot be stored in" in done.stderr


def _add_row(pair: tuple[np.ndarray, np.ndarray], row: int) -> int:
    left, right = pair
    found: int = left[row] + right[row]
    return found


@pytest.fixture
def _unkept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_kernels", [])
    monkeypatch.setattr(compiled, "_CodeCache", lambda _: NullCache())


@pytest.mark.usefixtures("_unkept")
@pytest.mark.parametrize(
    ("make", "counts"), [(compiled.kernel, False), (compiled.allocating_kernel, True)]
)
def test_only_kernels_that_make_arrays_count_references(
    make: Callable[[Any], Any], counts: bool
) -> None:
    """Counting references to an array takes longer than most uses of it."""
    inner = make(_add_row)

    def total(pair: tuple[np.ndarray, np.ndarray]) -> int:
        found = 0
        for row in range(len(pair[0])):
            found += inner(pair, row)
        return found

    outer = make(total)
    pair = np.arange(5), np.arange(5)

    assert outer(pair) == 20
    shown = any("NRT_incref" in outer.inspect_llvm(signature) for signature in outer.signatures)
    assert shown is counts


@pytest.mark.usefixtures("_unkept")
def test_a_kernel_that_makes_an_array_is_refused() -> None:
    """It would need reference counting, so its first call raises an error."""

    def make(size: int) -> int:
        return len(np.empty(size, np.int64))

    assert compiled.allocating_kernel(make)(3) == 3
    with pytest.raises(NumbaError, match="array"):
        compiled.kernel(make)(3)


def test_compiling_is_printed_if_a_program_has_no_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It is printed on standard error; with a log it is one message of level INFO."""
    log_compiling = compiled._log_compiling.__wrapped__
    alone = logging.Logger("alone")  # noqa: LOG001 - without the handlers of pytest
    monkeypatch.setattr(compiled, "_logger", alone)
    log_compiling(False, tmp_path)
    printed = capsys.readouterr().err
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lines.append)
    alone.addHandler(handler)
    log_compiling(False, tmp_path)

    assert (
        printed.count("Kernels that are not stored yet are compiled now, which takes up to a min")
        == 1
    )
    assert str(tmp_path) in printed
    assert str(compiled.SHIPPED) not in printed
    assert [line.levelname for line in lines] == ["INFO"]
    assert capsys.readouterr().err == ""


@pytest.fixture
def default_interrupts() -> Iterator[None]:
    """Handle SIGINT as a program does; a process of pytest-xdist ignores it."""
    known = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, known)


def test_an_interrupt_waits_for_a_kernel(default_interrupts: None) -> None:
    """An exception inside a kernel would crash the process; other threads get no interrupts."""
    ran = []

    def kernel() -> None:
        with delayed_interrupts():
            signal.raise_signal(signal.SIGINT)
            ran.append("after the signal")

    with pytest.raises(KeyboardInterrupt):
        kernel()
    assert ran == ["after the signal"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with ThreadPoolExecutor(1) as threads:
        threads.submit(lambda: delayed_interrupts().__enter__()).result()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
