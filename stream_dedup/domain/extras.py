"""Find the optional packages that a role needs and that are not installed."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import json
import shlex
import sys
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_DISTRIBUTION: Final = "crawl-dedup"
_NOT_IN_SETUP: Final = ("gs", "abfs")

# The packages that a role imports, and the extra that installs them. starlette and uvicorn are
# always installed; they are listed because an installation assembled by hand may lack them.
_NEEDED: Final = {
    "insights": (("cramjam", "faust"), "insights"),
    "search": (("jinja2", "starlette", "tantivy", "uvicorn"), "search"),
    "console": (("jinja2", "starlette", "uvicorn"), "search"),
}


def missing_packages(role: str) -> str:
    """Return a sentence that names all missing packages of a role and how to install them; empty if
    none is missing.
    """
    packages, extra = _NEEDED.get(role, ((), ""))
    missing = [name for name in packages if not _is_there(name)]
    if not missing:
        return ""
    named = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    is_one = len(missing) == 1
    return (
        f"The role {role} needs the package{'' if is_one else 's'} {named}, which "
        f"{'is' if is_one else 'are'} not installed; "
        f"install {'it' if is_one else 'them'} with: {install_command(extra)}"
    )


@functools.cache
def install_command(extra: str) -> str:
    """Return the command that installs an extra, from where this package was installed: a folder,
    such as a clone, or the package index. `make setup` installs nearly all extras.
    """
    try:
        recorded = importlib.metadata.distribution(_DISTRIBUTION).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        recorded = None
    origin = json.loads(recorded or "{}")  # PEP 610
    if "dir_info" not in origin:
        return f"pip install '{_DISTRIBUTION}[{extra}]'"
    folder = unquote(urlsplit(origin["url"]).path)
    if Path(sys.prefix) == Path(folder, ".venv") and extra not in _NOT_IN_SETUP:
        return f"make -C {shlex.quote(folder)} setup"
    return f"pip install {shlex.quote(f'{folder}[{extra}]')}"


def _is_there(name: str) -> bool:
    if name in sys.modules:  # faust puts a module without a spec there, on which find_spec raises
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None
