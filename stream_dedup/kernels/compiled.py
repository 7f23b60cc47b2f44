"""Compile the inner loops of `fingerprinting` and `index` to machine code, and cache it.

Invariants: a kernel runs without the GIL and without fast-math, so it returns the same integers on
every machine; cached machine code is used only with the sources, libraries and processor that it
was compiled for; no file is loaded from a directory that another user could have written to,
because the files are pickles, and loading one runs it.

numba compiles each kernel at its first call, which takes a minute for all of them, so the result is
cached. It is searched for in

1. `SHIPPED`, next to this file: `stream-dedup compile` writes it when an image or a package is
   built. It is as trustworthy as the sources next to it; nothing else writes to it;
2. `kernels` under `STREAM_DEDUP_CACHE_DIR`, if that is set;
3. `kernels` under the user's cache directory (`platformdirs`);
4. `stream-dedup-kernels-USERID` in the directory for temporary files.

A kernel that is in none of them is compiled and written to the first of 2 to 4 that is private and
writable. Kernels are also loaded from directories that are read-only. If none is writable, every
process compiles for itself, and logs one line about it.

The folders in such a directory are named by the kernel's module, a digest of its sources, and a
digest of the versions and the processor; a folder of another name is never opened. The sources are
the module and every module of this package that it imports, directly or not, since their kernels
and constants are compiled into it. Shipped kernels are compiled for a `Baseline` of the processor
family by default, so one image serves many machines.

numba's own cache is not used: it must write where it reads, checks only the file of a kernel and
not those of the kernels it calls, and names its folders by the path of the sources.
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

from stream_dedup.domain.compile_interrupts import COMPILING
from stream_dedup.domain.paths import make_folder

Kernel = TypeVar("Kernel", bound=Callable[..., Any])
# The option `_nrt` is for targets without numba's runtime, and missing in numba's types; if numba
# removes it, every kernel fails at once.
_compiler: Any = numba.njit

SHIPPED = Path(__file__).with_name("compiled_kernels")
_PACKAGE = Path(__file__).parents[1]
_CHECKSUM_BYTES = 16
_logger = logging.getLogger(__name__)


class Baseline(NamedTuple):
    """The oldest supported processor of a family, which shipped kernels are compiled for: LLVM's
    name of it, and its features.
    """

    processor: str
    features: tuple[str, ...]

    @property
    def fits_here(self) -> bool:
        """Whether this machine's processor has all features of the baseline."""
        host_features: dict[str, bool] = llvm.get_host_cpu_features()
        return all(host_features.get(feature, False) for feature in self.features)


# Every server processor since 2013 (Intel) and 2017 (AMD) has x86-64-v3 (AVX2), and every 64-bit
# ARM processor has NEON.
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
    """Return the baseline of this machine's processor family; None if there is none, or if the
    processor lacks a feature of it.
    """
    family_baseline = _BASELINES.get(platform.machine().lower())
    return family_baseline if family_baseline is not None and family_baseline.fits_here else None


class Statistics(NamedTuple):
    """Counts of this process's kernels. `loaded` and `compiled` count specialisations; `unused` has
    the names of kernels that were not called yet.
    """

    kernels: int
    loaded: int
    compiled: int
    unused: tuple[str, ...]


_kernels: list[Any] = []
_compiled_into: Path | None = None


def statistics() -> Statistics:
    """Return the number of kernels, and of specialisations that were loaded and compiled so far."""
    return Statistics(
        len(_kernels),
        sum(sum(compiled_kernel.stats.cache_hits.values()) for compiled_kernel in _kernels),
        sum(sum(compiled_kernel.stats.cache_misses.values()) for compiled_kernel in _kernels),
        tuple(
            f"{compiled_kernel.py_func.__module__}.{compiled_kernel.__name__}"
            for compiled_kernel in _kernels
            if not compiled_kernel.signatures
        ),
    )


def compile_into(directory: Path) -> None:
    """Compile every kernel that is called from now on, and write it to `directory`, readable to
    all, for `stream-dedup compile`.
    """
    global _compiled_into
    _compiled_into = directory


_IMPORT = re.compile(rb"^\s*from\s+(\w[\w.]*)\s+import\s+(\([^)]*\)|[^\n]*)", re.MULTILINE)


def _module_of(source: Path) -> str:
    """Return the module name of a source: its path in the package, or its file name if it is
    outside.
    """
    if not source.is_relative_to(_PACKAGE):
        return source.stem
    return ".".join(source.relative_to(_PACKAGE).with_suffix("").parts)


@cache
def _imported(source: Path) -> frozenset[Path]:
    """Return the files of the modules of this package that a source imports."""
    imported_files: set[Path] = set()
    for module, names in _IMPORT.findall(source.read_bytes()):
        if not module.startswith(_PACKAGE.name.encode() + b"."):
            continue
        path = _PACKAGE.parent.joinpath(*module.decode().split("."))
        inside = (path / f"{name.decode()}.py" for name in re.findall(rb"\w+", names))
        imported_files.update(file for file in (path.with_suffix(".py"), *inside) if file.is_file())
    return frozenset(imported_files)


@cache
def _sources_digest(source: Path) -> str:
    sources, unread = {source, Path(__file__)}, [source]
    while unread:
        new_sources = _imported(unread.pop()) - sources
        sources |= new_sources
        unread += new_sources
    digest = hashlib.blake2b(digest_size=8)
    for source_file in sorted(sources, key=_module_of):
        digest.update(_module_of(source_file).encode() + b"\0" + source_file.read_bytes() + b"\0")
    return digest.hexdigest()


def _machine_digest(processor: str, features: str) -> str:
    """Return a digest of everything besides the sources that machine code depends on."""
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
    """Return the digests of the machines whose code runs here: this one, and its family's
    baseline.
    """
    _, processor, features = registry.cpu_target.target_context.codegen().magic_tuple()
    host = _machine_digest(processor, features)
    family = baseline()
    return (host,) if family is None else (host, _machine_digest(family.processor, ""))


def _is_private(directory: Path) -> bool:
    """Return whether only this user or root can have written files there."""
    if not hasattr(os, "getuid"):  # Windows: user directories are private by their access lists
        return True
    status = directory.lstat()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid in {0, os.getuid()}
        and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    )


def _is_as_private_as_sources(directory: Path) -> bool:
    """Return whether only users who could also change this program can have written files there."""
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


def _cache_directories() -> Iterator[Path]:
    cache_root = os.environ.get("STREAM_DEDUP_CACHE_DIR")
    if cache_root:
        yield Path(cache_root) / "kernels"
    with contextlib.suppress(RuntimeError):  # no home directory can be found
        yield platformdirs.user_cache_path("stream-dedup") / "kernels"
    if hasattr(os, "getuid"):
        with contextlib.suppress(FileNotFoundError):  # no writable directory for temporary files
            yield Path(tempfile.gettempdir()) / f"stream-dedup-kernels-{os.getuid()}"


def _folder(source: Path, machine: str) -> str:
    return f"{_module_of(source)}-{_sources_digest(source)}-{machine}"


@cache
def cache_directory(source: Path) -> Path | None:
    """Return the directory to write a module's compiled kernels to, created if it is missing; None
    if there is no safe, writable one.
    """
    name = _folder(source, _machines()[0])
    if _compiled_into is not None:
        directory = _compiled_into / name
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        return directory
    for base in _cache_directories():
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
    """Return the directories with a module's kernels for this machine, in the order of the
    search.
    """
    if _compiled_into is not None:
        return ()
    directories = []
    for base in (SHIPPED, *_cache_directories()):
        is_safe = _is_as_private_as_sources if base == SHIPPED else _is_private
        for machine in _machines():
            directory = base / _folder(source, machine)
            with contextlib.suppress(OSError):
                if is_safe(base) and is_safe(directory):
                    directories.append(directory)
    return tuple(directories)


def _report_compiling(source: Path) -> None:
    """Log once why this start is slow, and how to make the next one quick."""
    if _compiled_into is None:
        directory = cache_directory(source)
        fits = any(path.parent == SHIPPED for path in readable_directories(source))
        _log_compiling(SHIPPED.is_dir() and not fits, directory and directory.parent)


@cache
def _log_compiling(has_shipped: bool, directory: Path | None) -> None:
    reason = ""
    if has_shipped:
        reason = (
            f" The kernels in {SHIPPED} were compiled from other sources, by other versions or "
            "for another processor."
        )
    if directory is None:
        _logger.warning(
            "Kernels are compiled now, and again at every start, because no private folder is "
            "writable; this takes up to a minute of CPU.%s Run `stream-dedup compile` when you "
            "build the image, or set STREAM_DEDUP_CACHE_DIR to a writable private folder.",
            reason,
        )  # fmt: skip
    else:
        # A program without a logging configuration, such as a notebook, shows only warnings.
        has_no_handlers = not _logger.hasHandlers()
        _logger.log(
            logging.WARNING if has_shipped or has_no_handlers else logging.INFO,
            "Kernels that are not stored yet are compiled now, which takes up to a minute of CPU.%s They are "
            "stored in %s for the next start.",
            reason, directory,
        )  # fmt: skip


class _CodeCache(caching._Cache):
    """The cache that numba calls before and after it compiles a kernel for a signature."""

    def __init__(self, function: Callable[..., Any]) -> None:
        code = cast("Any", function).__code__
        self._source = Path(code.co_filename)
        self._name = f"{function.__name__}-{code.co_firstlineno}"

    @property
    def cache_path(self) -> str:
        return ""  # there are several paths; numba only displays this one

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
            # The checksum differs if the disk was full.
            if checksum == hashlib.blake2b(pickled, digest_size=_CHECKSUM_BYTES).digest():
                rebuild: Any = compiler.CompileResult._rebuild
                return rebuild(target_context, *pickle.loads(pickled))  # noqa: S301 - only from private folders, see above
        _report_compiling(self._source)
        COMPILING.begin()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        COMPILING.end()
        directory = cache_directory(self._source)
        if directory is None or data.library.has_dynamic_globals:
            return
        dumps: Any = serialize.dumps
        pickled: bytes = dumps(data._reduce())
        try:
            with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
                file.write(hashlib.blake2b(pickled, digest_size=_CHECKSUM_BYTES).digest() + pickled)
            partial = Path(file.name)
            if _compiled_into is not None:
                partial.chmod(0o644)
            partial.replace(directory / self._file(sig))
        except OSError as error:
            if _compiled_into is not None:
                raise
            _logger.warning(
                "A compiled kernel cannot be stored in %s (%s); the next start compiles it again.",
                directory,
                error,
            )

    def enable(self) -> None:
        """Do nothing: the cache is always on."""

    def disable(self) -> None:
        """Do nothing: the cache is always on."""

    def flush(self) -> None:
        """Do nothing: a folder's name changes with its sources, so it is never stale."""


def kernel(function: Kernel) -> Kernel:
    """Compile a function with numba at its first call, or load its cached machine code.

    The function must not create arrays, which the compiler refuses: pass buffers to it. Its code
    then counts no references to arrays. Otherwise numba counts them at every call between kernels,
    also for arrays in tuples, and threads that share arrays wait for each other: a search then took
    twice the time in one thread, and more in two.
    """
    return _compile(function, counts_references=False)


def allocating_kernel(function: Kernel) -> Kernel:
    """Compile a function that creates arrays, which `kernel` refuses; call it once per batch."""
    return _compile(function, counts_references=True)


def _compile(function: Kernel, *, counts_references: bool) -> Kernel:
    compiled = _compiler(nogil=True, error_model="numpy", _nrt=counts_references)(function)
    compiled._cache = _CodeCache(function)
    _kernels.append(compiled)
    return cast("Kernel", compiled)


def inlined(function: Kernel) -> Kernel:
    """Compile a function into the kernels that call it, and cache it only with them; it must not
    create arrays.
    """
    compiled = _compiler(nogil=True, error_model="numpy", _nrt=False)(function)
    return cast("Kernel", compiled)


def _popcount(typing_context: Any, word: Any) -> Any:  # noqa: ARG001 - numba's signature
    """Count the bits of a uint64 in one instruction."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(arguments[0])

    return numba.types.int64(numba.types.uint64), build


popcount: Any = intrinsic(_popcount)


def _prefetch(typing_context: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Prefetch the cache line of array[index] without waiting; the index may be out of range."""

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
    """Fill an array from the bytes at `offset` of an open file descriptor; return the number of
    bytes read, -1 on failure.

    The call waits for the disk, without the GIL. The system's `pread` is called by its name, so the
    compiled code can be cached.
    """

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        # Windows has no `pread`. Only the index role keeps columns in files, and it does not run there.
        if sys.platform == "win32":
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
    """Return the index of the lowest bit that is set in a uint64; compiled to one instruction."""
    return popcount((word & (~word + np.uint64(1))) - np.uint64(1))
