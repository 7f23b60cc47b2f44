"""Hook of mkdocs: pages that stand elsewhere in the repository join the site, and links find them.

A link to a file that is no page of the site (a manifest, a schema) keeps its words and loses its target.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/contributing.md",
    "SECURITY.md": "contributing/security.md",
    "deploy/README.md": "how-to/deploy.md",
    "topics/README.md": "reference/topics.md",
}
# A link to the README finds the site's own first page, which says the same in fewer words.
PAGES = OUTSIDE | {"README.md": "index.md"}
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside of docs/."""
    for source, target in OUTSIDE.items():
        files.append(File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site; what changes it is found last."""
    del config
    here = page.file.src_uri
    if here.startswith(("decisions/", "contributing/", "changelog")):
        page.meta["search"] = {"boost": 0.5}  # who uses the filter asks more often than who changes it
    original = next((source for source, target in OUTSIDE.items() if target == here), f"docs/{here}")

    def link(found: re.Match[str]) -> str:
        words, target, anchor = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(original), target))
        if (ROOT / path).is_dir() and f"{path}/README.md" in PAGES:
            path += "/README.md"
        site = PAGES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
        if site is None and (ROOT / path).exists():
            return words
        if site is None or files.get_file_from_path(site) is None:
            return found[0]  # strict mode says what is wrong with it
        return f"[{words}]({posixpath.relpath(site, posixpath.dirname(here) or '.')}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else _LINK.sub(link, part) for part in parts)
