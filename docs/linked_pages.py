"""Hook of mkdocs: pages that stand elsewhere in the repository join the site, and links find them.

A link to a file that is no page of the site (a manifest, a schema) keeps its words and loses its
target.
"""

from __future__ import annotations

import json
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
# Who uses the filter asks more often than who changes it. A long list counts less for each of its
# words, and explains names.
BOOSTS = dict.fromkeys(("decisions/", "contributing/", "changelog"), 0.5)
BOOSTS |= dict.fromkeys(("reference/configuration", "how-to/troubleshooting"), 3.0)
_TITLE_BOOST = 8.0
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)((?:#[^)\s]*)?)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside of docs/."""
    for source, target in OUTSIDE.items():
        files.append(
            File.generated(config, target, content=(ROOT / source).read_text(encoding="utf-8"))
        )
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Turn links between files of the repository into links between pages of the site; what changes
    it is found last.
    """
    del config
    here = page.file.src_uri
    boost = next((boost for front, boost in BOOSTS.items() if here.startswith(front)), None)
    if boost is not None:
        page.meta["search"] = {"boost": boost}
    original = next(
        (source for source, target in OUTSIDE.items() if target == here), f"docs/{here}"
    )

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


def on_post_build(config: Any) -> None:
    """Let a word of a title count as some of the text do, not as a thousand: questions have words
    that begin many titles.
    """
    path = Path(config.site_dir) / "search" / "search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    index["config"]["fields"]["title"]["boost"] = _TITLE_BOOST
    path.write_text(json.dumps(index), encoding="utf-8")
