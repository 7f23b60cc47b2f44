"""`compile`: compile the kernels in advance, so that no role compiles them at its start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from stream_dedup.cli.options import JsonOption, command
from stream_dedup.domain.errors import ConfigurationError, StreamDedupError
from stream_dedup.domain.terminal import print_json
from stream_dedup.kernels import compiled


@command("compile", example="stream-dedup compile --to /opt/cache")
def compile_command(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Cache folder, for STREAM_DEDUP_CACHE_DIR.",
        ),
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Compile for this processor only.")
    ] = False,
    as_json: JsonOption = False,
) -> int:
    """Compile machine code in advance, for an image or a package.

    The code runs on every x86-64 processor with AVX2, or every 64-bit ARM; others compile at start.
    """
    directory = to.absolute() / "kernels" if to is not None else compiled.SHIPPED
    target = None if native else compiled.baseline()
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("NUMBA_CPU_")
    }
    if target is not None:
        environment |= {"NUMBA_CPU_NAME": target.processor, "NUMBA_CPU_FEATURES": ""}
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"The kernels cannot be stored in {directory} ({error.strerror}): run this command as "
            "the user who installs the program, or name another folder with --to."
        ) from error
    started = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-m", "stream_dedup.serving.compile_kernels", str(directory)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if child.returncode:
        raise StreamDedupError(
            f"Not all kernels were compiled into {directory}; see the messages above."
        )
    counts = json.loads(child.stdout.splitlines()[-1])
    processor = target.processor if target is not None else "this machine's processor"
    if as_json:
        print_json({"directory": str(directory), "processor": processor, **counts})
    else:
        print(
            f"{directory} contains {counts['kernels']} kernels for {processor} "
            f"({time.monotonic() - started:.0f} s)."
        )
        if to is not None:
            print(
                f"Set STREAM_DEDUP_CACHE_DIR={directory.parent} for the roles; the folder may be read-only."
            )
    return 0
