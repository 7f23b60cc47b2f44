"""Find the optional packages that a role needs and that are not installed."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

# The packages that a role imports, and the extra that installs them. starlette and uvicorn are
# always installed; they are listed because an installation assembled by hand may lack them.
_NEEDED: Final = {
    "insights": (("cramjam", "faust"), "insights"),
    "search": (("jinja2", "starlette", "tantivy", "uvicorn"), "search"),
    "console": (("jinja2", "starlette", "uvicorn"), "search"),
}


def lacking(role: str) -> str:
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
        f"install {'it' if is_one else 'them'} with: pip install 'crawl-dedup[{extra}]'"
    )


def _is_there(name: str) -> bool:
    if name in sys.modules:  # faust puts a module without a spec there, on which find_spec raises
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None
