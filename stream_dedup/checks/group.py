"""Whether the workers' group is this filter's alone.

Group, transactional ids and the state folder are named after the topics' prefix, so two filters of one cluster share none of
them, unless somebody sets one group for both. Then their workers would take each other's transactional ids and end each other.
"""

from __future__ import annotations

from collections.abc import Collection

from stream_dedup.checks.finding import CheckFinding, refused
from stream_dedup.settings.settings import Settings


def check_group(settings: Settings, documents: str, topics_read: Collection[str]) -> list[CheckFinding]:
    """Return a refusal if members of the group read another topic than `documents`."""
    others = sorted(set(topics_read) - {documents})
    if not others:
        return []
    return [
        refused(
            "group",
            f"Workers of the group {settings.group} read {', '.join(others)}, so another filter has this name; this one would "
            f"read {documents}, and their workers would end each other. Give this one another STREAM_DEDUP_GROUP, or none: "
            "then it is named after its STREAM_DEDUP_TOPIC_PREFIX. If its own topic was changed, stop its other workers first.",
        )
    ]
