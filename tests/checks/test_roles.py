"""What waits for a role that is not there is a warning that names the command to start it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest

from stream_dedup.checks import roles
from stream_dedup.checks.finding import CheckState
from stream_dedup.checks.roles import RoleFacts, check_roles, read_roles
from stream_dedup.ground.document import Message
from stream_dedup.ground.topics import TopicNames
from stream_dedup.log import epochs, records
from stream_dedup.settings.settings import Settings
from tests.log.test_records import make_batch

OLD_MS = 60_000


@pytest.mark.parametrize(
    ("facts", "commands"),
    [
        (RoleFacts(2, 3, {7: OLD_MS}, frozenset({7})), []),
        (RoleFacts(0, 0), []),  # before the first start
        (RoleFacts(1, 9, {7: OLD_MS, 8: 900}, frozenset({7})), []),  # its answer may be on the way
        (RoleFacts(1, 9, {4: OLD_MS, 8: OLD_MS}, frozenset({8, 9}), 8), []),  # below, answers were not read
        (RoleFacts(1, 0, {4: OLD_MS}), []),  # nobody waits: its answer went with its topic, or after a day
        (RoleFacts(0, 5), ["run worker"]),
        (RoleFacts(1, 5, {7: OLD_MS, 8: OLD_MS}, frozenset({7})), ["run index"]),
        (RoleFacts(1, 5, {8: OLD_MS}), ["run index"]),
        (RoleFacts(0, 5, {8: OLD_MS}), ["run worker", "run index"]),
    ],
)
def test_a_role_that_is_missing_is_named(facts: RoleFacts, commands: list[str]) -> None:
    found = list(check_roles(Settings(), TopicNames(), facts))

    assert [one.state for one in found] == ([CheckState.WARNING] * len(commands) or [CheckState.OK])
    assert [f"stream-dedup {command}" in one.sentence for one, command in zip(found, commands, strict=False)] == [True] * len(
        commands
    )


def test_a_group_that_works_for_another_filter_is_refused() -> None:
    """Its members read another topic; those that read this one are its own."""
    settings, names = Settings(group="one", topic_prefix="crawl"), TopicNames("crawl")

    found = [
        list(check_roles(settings, names, RoleFacts(1, 0, reads=frozenset(reads))))
        for reads in (
            ["crawl.documents"],
            ["crawl.documents", "news.documents"],
        )
    ]

    assert [[one.state for one in each] for each in found] == [[CheckState.OK], [CheckState.REFUSED]]
    assert "read news.documents" in found[1][0].sentence


def test_the_oldest_question_without_an_answer_is_named() -> None:
    """Also where a later one has its own: the topic of answers was deleted in between, or lost its end."""
    facts = RoleFacts(1, 8108, {40: 90_000, 41: 80_000, 42: 20_000}, frozenset({42}))

    (found,) = check_roles(Settings(), TopicNames(), facts)

    assert found.state is CheckState.WARNING
    assert "Log offset 40 of fingerprints is without an answer for 90 s (the last one is for offset 42)" in found.sentence


def test_what_was_committed_past_had_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are kept for a day. The question that is open is named, not an older one, nor one from before a rewind."""

    def asked(first: int, epoch: int) -> bytes:
        source = records.Source("documents", bytes(16), 3, epoch, 0)
        of_one = make_batch(10)
        return records.encode_batch(
            replace(of_one, sources=(source,), source=np.zeros(10, np.uint16), offset=np.arange(first, first + 10))
        )

    log = [asked(90, 0), asked(0, 1), asked(10, 1), asked(20, 1), b"damaged"]

    def read(_: Settings, topic: str, part: int, first: int) -> Iterator[Message]:
        if topic == "fingerprints":
            yield from (Message(topic, part, at, None, raw, 1, []) for at, raw in enumerate(log))

    monkeypatch.setattr(roles, "read_partition", read)
    admin = MagicMock()
    admin.group_members.return_value = 1
    admin.ends.return_value = {("fingerprints", 0): (0, len(log)), ("verdicts", 0): (77, 77)}
    admin.committed.return_value = {("documents", 3): (20, epochs.to_metadata(1)), ("other", 3): (999, None)}

    facts = read_roles(admin, Settings(), 30)

    assert list(facts.asked) == [3]
    assert "Log offset 3 of fingerprints" in next(check_roles(Settings(), TopicNames(), facts)).sentence
