"""How the inner loops of `fingerprint` and `index` become machine code, and where that is kept.

Invariants: a kernel runs without the GIL and without fast-math, so it gives the same integers on
every machine; kept machine code is only ever used with the sources, libraries and processor that it
was made for; nothing is ever loaded from a directory that another user could have written to,
because the files are pickles, and loading one runs it.

numba compiles each kernel at its first call, which takes a minute for all of them. So the result is
kept. It is looked for in

1. `SHIPPED`, beside this file: written ahead by `stream-dedup compile`, when an image or a package
is made. It is as
   trustworthy as the sources beside it, and is never written to otherwise;
2. `NUMBA_CACHE_DIR`, if that is set;
3. `kernels` under `STREAM_DEDUP_CACHE_DIR`, if that is set;
4. `kernels` under the user's cache directory (`platformdirs`);
5. `stream-dedup-kernels-USERID` in the directory for temporary files;

and what is found nowhere is compiled, and kept in the first of 2 to 5 that is private and can be
written to. All of them may be read-only: then kernels are loaded where they lie. If nothing is
found and nothing can be written, every process compiles for itself, and says so in one line of its
log.

Below such a directory the folders are named by the module that a kernel stands in, by a digest of
its sources, and by a digest of the versions and the processor: a folder that fits is used whole,
and one that does not fit is not opened. The sources are the module and every module of this package
that it imports, also by way of others, since kernels of those and their constants are compiled into
it. Kernels made ahead are for a `Baseline` of the processor family unless asked otherwise, so that
one image serves many machines.

numba's own cache is not used: it wants to write where it reads, looks only at the file that a
kernel stands in and not at those of the kernels it calls, and names its folders by the path of the
sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import pickle
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import llvmlite
import numba
import numpy as np
import platformdirs
from llvmlite import binding as llvm
from llvmlite import ir
from numba.core import caching, cgutils, compiler, registry, serialize
from numba.extending import intrinsic

from stream_dedup.domain.compiling import COMPILING
from stream_dedup.domain.paths import make_folder

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# Its option `_nrt` is for targets without numba's runtime, and not in its types; should it go,
# every kernel fails at once.
_compiler: Any = numba.njit

SHIPPED = Path(__file__).with_name("compiled_kernels")
_PACKAGE = Path(__file__).parents[1]
_CHECKSUM_BYTES = 16
_ERASE = "\r\x1b[K"
_logger = logging.getLogger(__name__)


class Baseline(NamedTuple):
    """The least processor of a family that kernels made ahead are for: LLVM's name of it, and the
    features it has.
    """

    processor: str
    features: tuple[str, ...]

    @property
    def fits_here(self) -> bool:
        """Whether the processor of this machine has all its features."""
        here: dict[str, bool] = llvm.get_host_cpu_features()
        return all(here.get(feature, False) for feature in self.features)


# x86-64-v3 (AVX2) is every server processor since 2013 (Intel) and 2017 (AMD); NEON is in every
# 64-bit ARM.
_X86_64_V3 = Baseline(
    "x86-64-v3",
    ("avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2",
     "ssse3", "xsave"),
)  # fmt: skip
_BASELINES = {
    "x86_64": _X86_64_V3,
    "amd64": _X86_64_V3,
    "aarch64": Baseline("generic", ()),
    "arm64": Baseline("generic", ()),
}


def baseline() -> Baseline | None:
    """Return the baseline of this machine's family of processors; None if there is none, or the
    machine is below it.
    """
    known = _BASELINES.get(platform.machine().lower())
    return known if known is not None and known.fits_here else None


class Statistics(NamedTuple):
    """What became of this process's kernels. `unused`: names of those that were not called yet."""

    kernels: int
    loaded: int
    compiled: int
    unused: tuple[str, ...]


_kernels: list[Any] = []
_ahead: Path | None = None  # set by `keep_in`


def statistics() -> Statistics:
    """Return how many kernels there are, and how many specialisations of them were loaded and
    compiled so far.
    """
    return Statistics(
        len(_kernels),
        sum(sum(one.stats.cache_hits.values()) for one in _kernels),
        sum(sum(one.stats.cache_misses.values()) for one in _kernels),
        tuple(f"{one.py_func.__module__}.{one.__name__}" for one in _kernels if not one.signatures),
    )


def keep_in(directory: Path) -> None:
    """Compile every kernel anew from here on, and keep it in `directory`, readable to all: what
    `compile` does.
    """
    global _ahead
    _ahead = directory


_IMPORT = re.compile(rb"^\s*from\s+(\w[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


def _module_of(source: Path) -> str:
    """Return what a source is called: its path in the package, or its name where it lies
    elsewhere.
    """
    if not source.is_relative_to(_PACKAGE):
        return source.stem
    return ".".join(source.relative_to(_PACKAGE).with_suffix("").parts)


@cache
def _imported(source: Path) -> frozenset[Path]:
    """Return the modules of this package that a source imports, each by its file."""
    found: set[Path] = set()
    for module, names in _IMPORT.findall(source.read_bytes()):
        if not module.startswith(_PACKAGE.name.encode() + b"."):
            continue
        path = _PACKAGE.parent.joinpath(*module.decode().split("."))
        inside = (path / f"{name.decode()}.py" for name in re.findall(rb"\w+", names))
        found.update(one for one in (path.with_suffix(".py"), *inside) if one.is_file())
    return frozenset(found)


@cache
def _sources_digest(source: Path) -> str:
    sources, waiting = {source, Path(__file__)}, [source]
    while waiting:
        further = _imported(waiting.pop()) - sources
        sources |= further
        waiting += further
    digest = hashlib.blake2b(digest_size=8)
    for one in sorted(sources, key=_module_of):
        digest.update(_module_of(one).encode() + b"\0" + one.read_bytes() + b"\0")
    return digest.hexdigest()


def _machine_digest(processor: str, features: str) -> str:
    """Name everything besides the sources that machine code depends on."""
    parts = (
        *(
            numba.__version__,
            llvmlite.__version__,
            np.__version__,
            sys.implementation.cache_tag,
            sys.abiflags,
        ),
        *(str(numba.config.OPT), llvm.get_process_triple(), processor, features),  # type: ignore[attr-defined]
    )
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=8).hexdigest()


@cache
def _machines() -> tuple[str, ...]:
    """Return the digests of the machines whose code runs here: this very one, and its family's
    baseline.
    """
    _, processor, features = registry.cpu_target.target_context.codegen().magic_tuple()
    own = _machine_digest(processor, features)
    shared = baseline()
    return (own,) if shared is None else (own, _machine_digest(shared.processor, ""))


def _is_private(directory: Path) -> bool:
    """Whether only this user (or root) can have put files there."""
    if not hasattr(os, "getuid"):  # Windows: user directories are private by their access lists
        return True
    status = directory.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid in {0, os.getuid()}
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _is_as_trusted_as_the_sources(directory: Path) -> bool:
    """Whether nobody can have put files there who could not have changed this program."""
    if not hasattr(os, "getuid"):
        return True
    status, sources = directory.lstat(), Path(__file__).parent.stat()
    open_to = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid in {0, os.getuid(), sources.st_uid}
        and not open_to & ~sources.st_mode
        and (not open_to or status.st_gid == sources.st_gid)
    )


def _candidates() -> Iterator[Path]:
    asked = os.environ.get("NUMBA_CACHE_DIR")
    if asked:
        yield Path(asked)
    own = os.environ.get("STREAM_DEDUP_CACHE_DIR")
    if own:
        yield Path(own) / "kernels"
    with contextlib.suppress(RuntimeError):  # no home directory can be found
        yield platformdirs.user_cache_path("stream-dedup") / "kernels"
    if hasattr(os, "getuid"):
        with contextlib.suppress(
            FileNotFoundError
        ):  # no directory for temporary files can be written to
            yield Path(tempfile.gettempdir()) / f"stream-dedup-kernels-{os.getuid()}"


def _folder(source: Path, machine: str) -> str:
    return f"{_module_of(source)}-{_sources_digest(source)}-{machine}"


@cache
def cache_directory(source: Path) -> Path | None:
    """Return the directory that keeps a module's compiled kernels, made if need be; None if there
    is no safe, writable one.
    """
    name = _folder(source, _machines()[0])
    if _ahead is not None:
        directory = _ahead / name
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        return directory
    for base in _candidates():
        directory = base / name
        try:
            make_folder(directory)
            # A user who may write to the parent may put another directory in this one's place.
            if _is_private(base) and _is_private(directory):
                with tempfile.TemporaryFile(dir=directory):
                    return directory
        except OSError:
            continue
    return None


@cache
def readable_directories(source: Path) -> tuple[Path, ...]:
    """Return the directories with kernels of a module that fit this machine, in the order they are
    looked into.
    """
    if _ahead is not None:
        return ()
    found = []
    for base in (SHIPPED, *_candidates()):
        is_safe = _is_as_trusted_as_the_sources if base == SHIPPED else _is_private
        for machine in _machines():
            directory = base / _folder(source, machine)
            with contextlib.suppress(OSError):
                if is_safe(base) and is_safe(directory):
                    found.append(directory)
    return tuple(found)


def _say_that_kernels_are_compiled(source: Path) -> None:
    """Say once why this start is slow and what makes the next one quick; at a terminal, show how
    far it is.
    """
    if _ahead is not None:
        return
    kept = cache_directory(source)
    fits = any(one.parent == SHIPPED for one in readable_directories(source))
    _log_that_kernels_are_compiled(SHIPPED.is_dir() and not fits, kept and kept.parent)
    if sys.stderr.isatty():
        print(f"{_ERASE}compiling the kernels, once: {statistics().compiled + 1} of "
              f"{len(_kernels)} at most", end="",
              file=sys.stderr, flush=True)  # fmt: skip


@cache
def _log_that_kernels_are_compiled(shipped: bool, kept: Path | None) -> None:
    if shipped:
        why = f"those in {SHIPPED} were made from other sources, by other versions or for another processor"
    else:
        why = f"none were found for this machine ({SHIPPED} holds those made ahead)"
    if kept is None:
        _logger.warning(
            "Up to %d kernels are compiled now, at every start, a minute of CPU: %s, and no "
            "private folder can be "
            "written to. Run `stream-dedup compile` when the image is made, or let "
            "STREAM_DEDUP_CACHE_DIR name such a folder.",
            len(_kernels), why,
        )  # fmt: skip
    else:
        # A program that configured no log, as a notebook, shows warnings alone.
        is_unheard = not _logger.hasHandlers()
        _logger.log(
            logging.WARNING if shipped or is_unheard else logging.INFO,
            "Up to %d kernels are compiled now, once, which takes up to a minute of CPU: %s. They "
            "are kept in %s for the next start.",
            len(_kernels), why, kept,
        )  # fmt: skip


class _KeptCode(caching._Cache):
    """What numba asks for a kernel's machine code, by signature, before and after compiling it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        code = cast("Any", function).__code__
        self._source = Path(code.co_filename)
        self._name = f"{function.__name__}-{code.co_firstlineno}"

    @property
    def cache_path(self) -> str:
        return ""  # there are several; numba only shows it

    def _file(self, signature: Any) -> str:
        return f"{self._name}-{hashlib.blake2b(str(signature).encode(), digest_size=8).hexdigest()}.kernel"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        name = self._file(sig)
        for directory in readable_directories(self._source):
            try:
                content = (directory / name).read_bytes()
            except OSError:
                continue
            checksum, pickled = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
            if (
                checksum == hashlib.blake2b(pickled, digest_size=_CHECKSUM_BYTES).digest()
            ):  # else the disk was full
                rebuild: Any = compiler.CompileResult._rebuild
                return rebuild(target_context, *pickle.loads(pickled))  # noqa: S301 - only from private folders, see above
        _say_that_kernels_are_compiled(self._source)
        COMPILING.begin()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        COMPILING.end()
        if _ahead is None and sys.stderr.isatty():
            print(_ERASE, end="", file=sys.stderr, flush=True)
        directory = cache_directory(self._source)
        if directory is None or data.library.has_dynamic_globals:
            return
        dumps: Any = serialize.dumps
        pickled: bytes = dumps(data._reduce())
        try:
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(hashlib.blake2b(pickled, digest_size=_CHECKSUM_BYTES).digest() + pickled)
            partial = Path(file.name)
            if _ahead is not None:
                partial.chmod(0o644)
            partial.replace(directory / self._file(sig))
        except OSError as error:
            if _ahead is not None:
                raise
            _logger.warning(
                "A compiled kernel cannot be kept in %s (%s); the next start compiles it again.",
                directory,
                error,
            )

    def enable(self) -> None:
        """Do nothing: it is always on."""

    def disable(self) -> None:
        """Do nothing: it is always on."""

    def flush(self) -> None:
        """Do nothing: a folder is never out of date."""


def kernel(function: Kernel) -> Kernel:
    """Compile a function with numba at its first call, unless its machine code is kept; keep it
    where that is safe.

    It makes no arrays: what it needs to work with is given to it, and the compiler refuses one that
    makes its own. So it need not count who uses an array. numba's code counts at every call between
    kernels, also of arrays in tuples, and threads that use the same ones wait for each other's
    counting: with it, searching took twice the time in one thread, and more in two.
    """
    return _kept(function, counts_references=False)


def allocating_kernel(function: Kernel) -> Kernel:
    """Do the same with a function that makes arrays: one that is called once for a batch, or
    rarely.
    """
    return _kept(function, counts_references=True)


def _kept(function: Kernel, *, counts_references: bool) -> Kernel:
    compiled = _compiler(nogil=True, error_model="numpy", _nrt=counts_references)(function)
    compiled._cache = _KeptCode(function)
    _kernels.append(compiled)
    return cast("Kernel", compiled)


def inlined(function: Kernel) -> Kernel:
    """Compile a function as part of the kernels that call it: it is kept with them, not by itself;
    it makes no arrays.
    """
    compiled = _compiler(nogil=True, error_model="numpy", _nrt=False)(function)
    return cast("Kernel", compiled)


def _popcount(typing_context: Any, word: Any) -> Any:  # noqa: ARG001 - numba's signature
    """Count the bits of a uint64: one instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return numba.types.int64(numba.types.uint64), build


popcount: Any = intrinsic(_popcount)


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Ask for the cache line of array[index], which need not exist, without waiting for it."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, value=arguments[0]).data
        byte = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        pointer = builder.bitcast(builder.gep(data, [arguments[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        insert: Any = cgutils.get_or_insert_function
        call = insert(builder.module, kind, "llvm.prefetch.p0")
        builder.call(call, [pointer, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return numba.types.void(array, numba.types.int64), build


prefetch: Any = intrinsic(_prefetch)


def _read_at(typing_context: Any, file: Any, offset: Any, into: Any) -> Any:  # noqa: ARG001
    """Fill an array from the bytes at `offset` of an open file, given by its number; return how
    many it got, -1 on failure.

    It waits for the disk, without the GIL. The system's `pread` is called by its name, so what is
    compiled can be kept.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if sys.platform == "win32":  # it has no such call, and there no column lies in a file
            return ir.Constant(ir.IntType(64), -1)
        array = context.make_array(signature.args[2])(context, builder, value=arguments[2])
        size = builder.mul(array.nitems, array.itemsize)
        byte, number, long = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
        insert: Any = cgutils.get_or_insert_function
        call = insert(builder.module, ir.FunctionType(long, [number, byte, long, long]), "pread")
        where = builder.bitcast(array.data, byte)
        return builder.call(call, [builder.trunc(arguments[0], number), where, size, arguments[1]])

    return numba.types.int64(numba.types.int64, numba.types.int64, into), build


read_at: Any = intrinsic(_read_at)


@inlined
def lowest_bit(word: Any) -> Any:
    """Return which bit of a uint64 is the lowest that is set; the compiler knows this for one
    instruction.
    """
    return popcount((word & (~word + np.uint64(1))) - np.uint64(1))
