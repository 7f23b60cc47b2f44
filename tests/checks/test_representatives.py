"""The topic `representatives`, as doctor sees it: there and compacted, or a sentence with the remedy."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from stream_dedup.checks.cluster import check_representatives
from stream_dedup.checks.finding import CheckState
from stream_dedup.settings.settings import Settings


@dataclass
class Existing:
    partitions: int = 1
    replicas: int = 1
    config: dict[str, str] = field(default_factory=lambda: {"cleanup.policy": "compact"})


@pytest.mark.parametrize(
    ("topic", "says"),
    [
        (None, "does not exist"),
        (Existing(config={"cleanup.policy": "delete"}), "cleanup.policy=delete, and must have compact"),
        (Existing(config={"cleanup.policy": "compact,delete"}), "must have compact"),
        (Existing(partitions=3), "has 3 partitions"),
    ],
)
def test_what_is_not_well_is_a_warning_with_its_remedy(topic: Existing | None, says: str) -> None:
    """Never a refusal: no document waits for the topic."""
    (found,) = check_representatives(Settings(representatives=True), topic)

    assert found.state is CheckState.WARNING
    assert says in found.sentence
    assert "topics apply" in found.sentence


def test_it_is_looked_at_where_the_index_is_to_write_it() -> None:
    """As it is declared it is well; and nobody asks for it where the setting is off."""
    (found,) = check_representatives(Settings(representatives=True), Existing())

    assert found.state is CheckState.OK
    assert list(check_representatives(Settings(), None)) == []
