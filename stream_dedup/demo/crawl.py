"""Read the crawl of the demo, and its true copies, from a file in this package.

`python -m bench.demo_crawl` generates the pages, measures all pairs and writes the file.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from stream_dedup.demo.score import Pair

FILE: Final = "crawl.jsonl.xz"
HOST_OF_SITE: Final = "almanac.example"
"""The host of the large site, whose pages share a template."""


@dataclass(frozen=True, slots=True)
class CrawledPage:
    """A record of the crawl. `id`: the URL of the page; `of`: the URL of the page that it was made
    from; `kind`: how it was made; `key`, `value`: those of the record; `title`: empty without one.
    """

    id: str
    text: str
    language: str
    kind: str
    of: str | None
    key: bytes
    value: bytes
    title: str = ""

    @property
    def is_on_large_site(self) -> bool:
        """Whether the page belongs to the large site."""
        return self.id.startswith(f"https://{HOST_OF_SITE}/")


def read_crawl() -> tuple[list[CrawledPage], list[Pair]]:
    """Return the pages in crawl order, and their similar pairs."""
    packed = resources.files(__package__).joinpath(FILE).read_bytes()
    pages: list[CrawledPage] = []
    pairs: list[Pair] = []
    for line in lzma.decompress(packed).splitlines():
        row = json.loads(line)
        pairs += [Pair(earlier, len(pages), *measured) for earlier, *measured in row["similar"]]
        pages.append(_page_of(row))
    return pages, pairs


def _page_of(row: dict[str, Any]) -> CrawledPage:
    key, value, kind = row["id"].encode(), row["value"].encode(), row["kind"]
    record = {"text": ""} if kind == "broken" else json.loads(value)
    title = record.get("title", "")
    return CrawledPage(
        row["id"], record["text"], row["language"], kind, row["of"], key, value, title
    )
