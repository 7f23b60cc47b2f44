"""What a role needs beside what is always installed, and how that is had."""

from __future__ import annotations

import importlib.util
import sys
from typing import Final

# The packages that a role imports and an extra brings, and the extra. starlette and uvicorn belong
# to what is always installed; they are named all the same, because an installation that was put
# together by hand may lack them.
_NEEDED: Final = {
    "insights": (("cramjam", "faust"), "insights"),
    "search": (("jinja2", "starlette", "tantivy", "uvicorn"), "search"),
    "console": (("jinja2", "starlette", "uvicorn"), "search"),
}


def lacking(role: str) -> str:
    """Return the sentence on all packages that a role lacks, with how to get them; nothing if it
    lacks none.
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
    if (
        name in sys.modules
    ):  # faust puts a module of its own making there, of which nobody can ask where it came from
        return sys.modules[name] is not None
    return importlib.util.find_spec(name) is not None
