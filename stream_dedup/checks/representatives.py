"""Whether the topic `representatives` is there and compacted, where an index is to write it. No document waits for it."""

from __future__ import annotations

from collections.abc import Iterator

from stream_dedup.checks.finding import CheckFinding, ok, warning
from stream_dedup.ground.topics import TopicState
from stream_dedup.settings.settings import Settings

_APPLY = "Run `stream-dedup topics apply`."


def check_representatives(settings: Settings, topic: TopicState | None) -> Iterator[CheckFinding]:
    """What the index writes has a place, and a reader of the topic finds one record for each key."""
    if not settings.representatives:
        return
    name = settings.topic_names.representatives
    if topic is None:
        yield warning("representatives", f"{name} does not exist, and the index is to write it. {_APPLY}")
    elif (policy := topic.config.get("cleanup.policy", "")) != "compact":
        yield warning(
            "representatives",
            f"The topic {name} has cleanup.policy={policy}, and must have compact: what did not change lately would be "
            f"deleted. {_APPLY}",
        )
    elif topic.partitions != 1:
        yield warning(
            "representatives",
            f"The topic {name} has {topic.partitions} partitions: the index writes the first one only, where no other program "
            "may write. Delete it, and create it again with: stream-dedup topics apply",
        )
    else:
        yield ok("representatives", f"{name} is there for the index to write.")
