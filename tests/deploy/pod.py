"""A process under the constraints that the manifests put on a pod, without a container: what the tests of the roles use.

It has another user who is no root and has no home and no name, no capabilities and no way to get any, a root file system that
is read-only, two writable folders, and no environment but what it is given.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.deploy.tools import ROOT

USER = 10001
MOUNT = Path("/mnt")
VOLUME = MOUNT / "volume"
TMP = MOUNT / "tmp"


def _closed_parent(path: Path) -> Path | None:
    """Return the first folder on the way to `path` that another user may not pass."""
    return next((parent for parent in reversed(path.parents) if not parent.stat().st_mode & 0o001), None)


def _script(command: list[str], kernels: Path | None) -> str:
    needed = sorted({Path(one).resolve() for one in (str(ROOT), sys.prefix, sys.base_prefix)})
    lines = [
        "set -e",
        f"mount -t tmpfs -o mode=755 pod {MOUNT}",
        f"mkdir {MOUNT}/keep",
        f"mkdir -m 700 {VOLUME}",
        *([] if kernels is None else [f"mkdir {VOLUME}/cache", f"cp -r {shlex.quote(str(kernels))} {VOLUME}/cache/kernels"]),
        f"chmod -R go-rwx {VOLUME} && chown -R {USER}:{USER} {VOLUME}",
        f"mkdir -m 1777 {TMP}",
    ]
    for number, path in enumerate(needed):
        lines += [f"mkdir {MOUNT}/keep/{number}", f"mount --bind {shlex.quote(str(path))} {MOUNT}/keep/{number}"]
    closed = {path: parent for path in needed if (parent := _closed_parent(path)) is not None}
    lines += [f"mount -t tmpfs -o mode=755 pod {shlex.quote(str(parent))}" for parent in sorted(set(closed.values()))]
    for number, path in enumerate(needed):
        if path in closed:
            where = shlex.quote(str(path))
            lines += [f"mkdir -p {where}", f"mount --bind {MOUNT}/keep/{number} {where}"]
    # The volume is a file system of its own, so that it stays writable.
    lines += [
        f"for one in {VOLUME} {TMP}; do mount --bind $one $one; done",
        "while read -r _ where _; do case $where in /proc*|/sys*|/dev*|" + f"{VOLUME}|{TMP}" + ") ;; "
        '*) mount -o remount,bind,ro "$where" 2> /dev/null || true ;; esac; done < /proc/mounts',
        f"exec setpriv --reuid {USER} --regid {USER} --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs -- "
        + shlex.join(command),
    ]
    return "\n".join(lines)


def start(
    command: list[str], environment: dict[str, str], log: Path | None = None, kernels: Path | None = None
) -> subprocess.Popen[str]:
    """Start a command so; it has the process's own id, so that a signal reaches it.

    `kernels` are put into the volume's folder `cache`, as an earlier start would have left them.
    """
    with log.open("w") if log else open(os.devnull, "w") as stream:  # noqa: PTH123
        return subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", _script(command, kernels)],
            env={"PATH": os.environ["PATH"], "TMPDIR": str(TMP)} | environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stream if log else subprocess.STDOUT,
            text=True,
        )


def why_not() -> str | None:
    """Return why no such process can be made here, or None."""
    if os.geteuid() != 0:
        return "only root may change a user and mount, and this is not root"
    missing = [tool for tool in ("unshare", "setpriv", "mount") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed"
    tried = start(["true"], {})
    said, _ = tried.communicate(timeout=30)
    return f"a mount namespace cannot be made: {said.strip()}" if tried.returncode else None
