"""How two documents are related by site, title and id, and how alike they must then be to be
copies.

Pages of one site share navigation and phrasing, so different ones are often .65 to .9 alike; pages
of different sites hardly ever are. Within one site equal titles speak for a copy, and different
ones against it. Sites and titles are compared by their keyed hashes, ids by their CRC-32; 0 is an
unknown one.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from stream_dedup.domain.hosts import shown_host
from stream_dedup.domain.sketch import as_text


class Relation(enum.IntEnum):
    """How two documents are related; `Plan.alike_mins` has a threshold for each."""

    FREE = 0
    """Different sites, or the same id."""
    UNKNOWN_SITE = 1
    """The site of one is unknown."""
    SAME_TITLE = 2
    """One site and equal titles."""
    UNKNOWN_TITLE = 3
    """One site, and the title of one is unknown."""
    OTHER_TITLE = 4
    """One site and different titles."""

    @property
    def is_one_site(self) -> bool:
        """Whether both documents are known to be of one site."""
        return self >= Relation.SAME_TITLE


class Origin(NamedTuple):
    """Where a document is from: the keyed hashes of its site and title, the CRC-32 of its id."""

    site: int = 0
    title: int = 0
    id: int = 0


UNKNOWN = Origin()


def relation_of(first: Origin, second: Origin) -> Relation:
    """Return how two documents are related."""
    if (first.id and first.id == second.id) or (
        first.site and second.site and first.site != second.site
    ):
        return Relation.FREE
    if not (first.site and second.site):
        return Relation.UNKNOWN_SITE
    if not (first.title and second.title):
        return Relation.UNKNOWN_TITLE
    return Relation.SAME_TITLE if first.title == second.title else Relation.OTHER_TITLE


def in_words(
    similarity: int,
    relation: Relation,
    threshold: int,
    sites: tuple[str, str] = ("", ""),
    *,
    has_same_id: bool = False,
) -> str:
    """Return in two sentences why two documents are copies or not; similarities in per cent.

    `threshold`: the one of their relation, from which on they are copies. `sites`: their names,
    empty where they are not known.
    """
    first, second = map(shown_host, sites)
    site = first or second or "one site"
    free = "on different sites" + (f" ({first} and {second})" if first and second else "")
    where, who = {
        Relation.FREE: (free, "Pages of different sites"),
        Relation.UNKNOWN_SITE: (
            "and the site of one is unknown" if first or second else "of unknown sites",
            "Documents that may be of one site",
        ),
        Relation.SAME_TITLE: (f"both on {site} with one title", "Pages of one site and one title"),
        Relation.UNKNOWN_TITLE: (f"both on {site}", "Pages of one site"),
        Relation.OTHER_TITLE: (
            f"both on {site} with different titles",
            "Pages of one site with different titles",
        ),
    }[relation]
    if has_same_id:
        where, who = "with the same id", "Versions of one document"
    so = "is a copy" if similarity >= threshold else "was kept"
    return (
        f"Similarity {as_text(similarity)}, {where}. {who} are copies from {as_text(threshold)}, so "
        f"this one {so}."
    )
