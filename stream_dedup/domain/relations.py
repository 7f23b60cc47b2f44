"""Relate two documents by site, title and id; the relation selects the threshold of similarity.

Pages of one site share navigation and phrasing, so different pages often have a similarity of 0.65
to 0.9; pages of different sites hardly ever do. Within one site, equal titles are evidence for a
copy and different titles against it. Sites and titles are compared by keyed hashes, ids by CRC-32;
0 means unknown.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from stream_dedup.domain.hosts import shown_host
from stream_dedup.domain.sketch import as_text


class Relation(enum.IntEnum):
    """The relation of two documents; `Plan.alike_mins` contains a threshold for each."""

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
    """The keyed hashes of a document's site and title, and the CRC-32 of its id; 0 if unknown."""

    site: int = 0
    title: int = 0
    id: int = 0


UNKNOWN = Origin()


def relation_of(first: Origin, second: Origin) -> Relation:
    """Return the relation of two documents."""
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
    """Return two sentences that say why two documents are copies or not.

    `similarity` and `threshold`, the minimum similarity of copies with this `relation`, are in per
    cent. `sites` are their names, empty if unknown.
    """
    first, second = map(shown_host, sites)
    site = first or second or "one site"
    on_sites = "on different sites" + (f" ({first} and {second})" if first and second else "")
    where, pages = {
        Relation.FREE: (on_sites, "Pages of different sites"),
        Relation.UNKNOWN_SITE: (
            "and the site of one is unknown" if first or second else "of unknown sites",
            "Documents that may be of one site",
        ),
        Relation.SAME_TITLE: (
            f"both on {site} with the same title",
            "Pages of one site with the same title",
        ),
        Relation.UNKNOWN_TITLE: (f"both on {site}", "Pages of one site"),
        Relation.OTHER_TITLE: (
            f"both on {site} with different titles",
            "Pages of one site with different titles",
        ),
    }[relation]
    if has_same_id:
        where, pages = "with the same id", "Versions of one document"
    result = "is a copy" if similarity >= threshold else "was kept"
    return (
        f"Similarity {as_text(similarity)}, {where}. {pages} are copies at a similarity "
        f"of {as_text(threshold)} or more, so this one {result}."
    )
