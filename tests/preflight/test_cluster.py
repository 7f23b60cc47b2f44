"""Checks of the cluster: each wrong setting is reported in one sentence with its remedy."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest

from stream_dedup.domain.document import LogPlace, Message, Position, Reason, Representative
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import TopicNames, TopicState, read_topics
from stream_dedup.kafka import Bounds
from stream_dedup.log import answers, epochs, records
from stream_dedup.log.answers import LogAnswer
from stream_dedup.log.records import DOCUMENTS_MAX
from stream_dedup.log.schema import Judgement
from stream_dedup.preflight import roles
from stream_dedup.preflight.cluster import (
    ANSWER_BYTES_MAX,
    FRAMING_BYTES,
    Facts,
    check_cluster,
)
from stream_dedup.preflight.finding import CheckFinding, CheckState, raise_refusals
from stream_dedup.preflight.roles import RoleFacts, check_roles, read_roles
from stream_dedup.settings.settings import Settings
from tests.log.test_records import make_batch

NAMES = TopicNames()
ASKED = (NAMES.documents, *NAMES.outputs, NAMES.fingerprints, NAMES.verdicts, NAMES.begun)
DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000


def existing(partitions: int, replicas: int, config: dict[str, str]) -> TopicState:
    """Return a topic as a cluster has it."""
    return TopicState("", b"", partitions, config, replicas)


def as_declared() -> dict[str, TopicState]:
    """Return the topics of `topics/`, as a cluster has them after `topics apply`."""
    return {
        topic.name: existing(topic.partitions, topic.replicas, dict(topic.config))
        for topic in read_topics()
        if topic.name in ASKED
    }


def facts(**more: object) -> Facts:
    good = Facts(ASKED, as_declared(), brokers=3, log=(0, 7), now_ms=NOW_MS)
    more = {
        "oldest_ms": NOW_MS - DAY_MS,
        "committed": {0: (5, epochs.to_metadata(0))},
        "source": {0: (2, 9)},
    } | more
    return replace(good, **more)  # type: ignore[arg-type]


def check_by_state(
    cluster_facts: Facts, **settings: object
) -> dict[CheckState, list[CheckFinding]]:
    findings = check_cluster(Settings(**settings), NAMES, cluster_facts)  # type: ignore[arg-type]
    return {
        state: [finding for finding in findings if finding.state is state] for state in CheckState
    }


def test_the_declared_topics_pass() -> None:
    """What `topics apply` makes gives one good line for each check, and nothing else; an index is
    asked about its own alone."""
    of_log = ["topics", "log", "replicas", "log sizes"]
    of_index = {
        name: topic for name, topic in as_declared().items() if name in ("fingerprints", "verdicts")
    }
    for given, checks in (
        (facts(), [*of_log, "output sizes", "retention", "offsets", "reading"]),
        (Facts(tuple(of_index), of_index, log=(0, 0), now_ms=NOW_MS), of_log),
    ):
        by_state = check_by_state(given)
        assert [finding.check for finding in by_state[CheckState.OK]] == checks
        assert by_state[CheckState.WARNING] == by_state[CheckState.REFUSED] == []


def config(name: str, **settings: str) -> Callable[[dict[str, TopicState]], object]:
    dotted = {key.replace("_", "."): value for key, value in settings.items()}
    return lambda topics: topics[name].config.update(dotted)


def shape(name: str, **numbers: int) -> Callable[[dict[str, TopicState]], object]:
    return lambda topics: topics.update({name: replace(topics[name], **numbers)})


WRONG: dict[tuple[str, str], list[tuple[Callable[[dict[str, TopicState]], object], str]]] = {
    ("refused", "topics"): [
        (
            lambda t: t.pop("unique"),
            "unique does not exist; create it with: stream-dedup topics apply",
        ),
        (lambda t: [t.pop("unique"), t.pop("verdicts")], "unique, verdicts do not exist"),
    ],
    ("refused", "log"): [
        (config("fingerprints", retention_ms="1000"), "retention.ms=1000, and must have -1"),
        (config("fingerprints", cleanup_policy="compact"), "cleanup.policy=compact"),
        (config("begun", cleanup_policy="compact"), "the list of started partitions would be lost"),
        (config("fingerprints", message_timestamp_type="CreateTime"), "LogAppendTime"),
        (shape("fingerprints", partitions=2), "has 2 partitions and must have one"),
    ],
    ("refused", "replicas"): [
        (shape("fingerprints", replicas=1), "1 replica and min.insync.replicas=2"),
        (config("fingerprints", unclean_leader_election_enable="true"), "unclean.leader.election"),
        (shape("unique", replicas=1), "nothing can be written to it"),
    ],
    ("warning", "replicas"): [
        (config("fingerprints", min_insync_replicas="1"), "only one broker has acknowledged"),
    ],
    ("refused", "log sizes"): [
        (config("fingerprints", max_message_bytes="200000"), "a batch can have 300,101"),
        (config("verdicts", max_message_bytes="200000"), "an answer can have"),
        (config("verdicts", cleanup_policy="compact,delete"), "would wait forever"),
    ],
    ("warning", "log sizes"): [
        (config("verdicts", retention_ms="60000"), "kept for 60 seconds"),
    ],
    ("warning", "output sizes"): [
        (config("unique", max_message_bytes="1048588"), "larger records become dead letters"),
        (
            config("dlq.documents", max_message_bytes="1114124"),
            "larger records are truncated there",
        ),
        (config("documents", max_message_bytes="2000000"), "accepts records of 2,000,000 bytes"),
        (shape("duplicates", partitions=3), "12 partitions, but duplicates has 3"),
    ],
    ("warning", "retention"): [
        (
            config("unique", retention_ms="3600000"),
            "the oldest document in documents is 24 hours old",
        ),
        (config("duplicates", message_timestamp_type="LogAppendTime"), "lose their original ones"),
        (
            lambda t: t["unique"].config.update({"message.timestamp.before.max.ms": "3600000"}),
            "whose timestamps differ more from the present",
        ),
        (
            config("unique", cleanup_policy="compact"),
            "of several documents with one key only the last",
        ),
        (config("dlq.documents", retention_ms="60000"), "before anybody reads them"),
        (
            config("documents", retention_ms="3600000"),
            "documents that are not judged within that time",
        ),
        (config("documents", cleanup_policy="compact"), "before it is judged"),
    ],
}
"""What is wrong with a topic, by the state and the check that report it."""


@pytest.mark.parametrize(
    ("state", "check", "change", "expected"),
    [(*outcome, *case) for outcome, cases in WRONG.items() for case in cases],
)
def test_a_wrong_topic_is_one_sentence(
    state: str, check: str, change: Callable[[dict[str, TopicState]], object], expected: str
) -> None:
    """What endangers documents or stops the filter is refused; what only costs is a warning; each
    ends with what to do."""
    topics = as_declared()
    change(topics)

    by_state = check_by_state(facts(topics=topics))

    wrong = by_state[CheckState.WARNING] + by_state[CheckState.REFUSED]
    assert wrong, "nothing was found"
    assert {
        (finding.state, finding.check) for finding in wrong if expected in finding.sentence
    } == {(CheckState(state), check)}
    assert all(finding.sentence.endswith((".", "topics apply")) for finding in wrong)


def test_a_topic_named_by_a_setting_is_left_to_its_owner() -> None:
    topics = as_declared()
    topics["clean"] = existing(1, 3, topics.pop("unique").config | {"max.message.bytes": "1"})
    given = Settings(unique="clean")
    asked = tuple(topics)

    wrong = [
        finding
        for finding in check_cluster(given, given.topic_names, Facts(asked, topics))
        if finding.state is CheckState.WARNING
    ]

    assert len(wrong) == 2
    assert all(
        "`topics apply` does not change the topic that STREAM_DEDUP_UNIQUE names"
        in finding.sentence
        for finding in wrong
    )


@pytest.mark.parametrize(
    ("more", "state", "expected"),
    [
        ({"log": (3, 7)}, "refused", "begins at offset 3, so records of it were removed"),
        ({"committed": {0: (5, "")}}, "refused", "stream-dedup rewind documents-0@5"),
        (
            {"committed": {0: (1, epochs.to_metadata(0))}},
            "refused",
            "Kafka deleted 1 record unread",
        ),
        (
            {"committed": {0: (12, epochs.to_metadata(0))}},
            "refused",
            r"above the end of documents-0 \(9\)",
        ),
        ({"committed": {}}, "warning", "a worker exits with code 78"),
        (
            {"committed": {}, "begun": frozenset({0, 1})},
            "refused",
            "for documents-0, documents-1, though begun records",
        ),
        (
            {"begun": frozenset({0, 1}), "known": frozenset({0})},
            "refused",
            "no committed offset for documents-1, though",
        ),
        (
            {"topics": as_declared() | {"unique": existing(12, 3, {"retention.ms": "9" * 6})}},
            "warning",
            "17 minutes",
        ),
    ],
)
def test_offsets_and_log(more: dict[str, object], state: str, expected: str) -> None:
    """Where the group stands, and what is left of the log."""
    by_state = check_by_state(facts(**more))

    assert any(re.search(expected, finding.sentence) for finding in by_state[CheckState(state)]), (
        by_state
    )


def test_a_first_start_has_no_findings_about_offsets() -> None:
    """An empty log and a group without offsets are how a filter begins; so is a log of seeds, under
    which nothing was begun."""
    for more in ({"log": (0, 0)}, {"log": (0, 60), "begun": frozenset[int]()}):
        by_state = check_by_state(facts(committed={}, **more))

        assert by_state[CheckState.WARNING] == by_state[CheckState.REFUSED] == []


BOTH, LOG_TOO = ("unique", "duplicates"), ("fingerprints", "unique")
SEVERAL = "Kafka acknowledges records after more than one broker has stored them"


@pytest.mark.parametrize(
    ("names", "alone", "expected"),
    [
        (BOTH, BOTH, [f"{SEVERAL}, except in unique, duplicates, where one broker is enough."]),
        (LOG_TOO, (), [f"{SEVERAL}."]),
        (LOG_TOO, ("unique",), [f"{SEVERAL}, except in unique, where one broker is enough."]),
    ],
)
def test_missing_topics_are_left_out_of_the_replica_report(
    names: tuple[str, ...], alone: tuple[str, ...], expected: list[str]
) -> None:
    """Without a topic nothing is on any broker; one replica is on one, and so is what one replica
    alone acknowledges."""
    topics = {name: topic for name, topic in as_declared().items() if name in names}
    for name in alone:
        topics[name] = existing(
            topics[name].partitions, 1, {**topics[name].config, "min.insync.replicas": "1"}
        )

    by_state = check_by_state(Facts(requested_topics=ASKED, topics=topics, now_ms=NOW_MS))

    assert [
        finding.sentence for finding in by_state[CheckState.OK] if finding.check == "replicas"
    ] == expected


def test_all_refusals_are_raised_at_once() -> None:
    """A role's last line names everything that must change; warnings alone raise nothing."""
    topics = as_declared()
    config("fingerprints", retention_ms="1", max_message_bytes="9")(topics)
    by_state = check_by_state(facts(topics=topics))

    with pytest.raises(ConfigurationError) as caught:
        raise_refusals(by_state[CheckState.WARNING] + by_state[CheckState.REFUSED])

    assert len(str(caught.value).splitlines()) == len(by_state[CheckState.REFUSED]) == 2
    raise_refusals(by_state[CheckState.WARNING])


def test_the_largest_answer_is_as_large_as_the_check_says() -> None:
    """A thousand duplicates of as many partitions with the longest names and ids stay within the
    bound, and come near it."""
    positions = (
        Position(f"{place:04}" + "t" * 245, bytes(16), place, 2**40)
        for place in range(DOCUMENTS_MAX)
    )
    judgements = tuple(
        Judgement(
            Reason.NEAR, LogPlace(2**40, place), 9, Representative(position, b"i" * 512, 2**40)
        )
        for place, position in enumerate(positions)
    )

    raw, _ = answers.encode(LogAnswer(1, bytes(16), 1, judgements), answers.CHAIN_START)

    assert 0.9 * ANSWER_BYTES_MAX < len(raw) < ANSWER_BYTES_MAX + FRAMING_BYTES


# -- records that wait for a missing role are a warning with the command that starts it


OLD_MS = 60_000


@pytest.mark.parametrize(
    ("role_facts", "commands"),
    [
        (RoleFacts(2, 3, {7: OLD_MS}, frozenset({7})), []),
        (RoleFacts(0, 0), []),  # before the first start
        (RoleFacts(1, 9, {7: OLD_MS, 8: 900}, frozenset({7})), []),  # its answer may be on the way
        (
            RoleFacts(1, 9, {4: OLD_MS, 8: OLD_MS}, frozenset({8, 9}), 8),
            [],
        ),  # answers for offsets below 8 were not read
        (
            RoleFacts(1, 0, {4: OLD_MS}),
            [],
        ),  # no record waits: the answer was deleted with its topic or after a day
        (RoleFacts(0, 5), ["run worker"]),
        (RoleFacts(1, 5, {7: OLD_MS, 8: OLD_MS}, frozenset({7})), ["run index"]),
        (RoleFacts(1, 5, {8: OLD_MS}), ["run index"]),
        (RoleFacts(0, 5, {8: OLD_MS}), ["run worker", "run index"]),
    ],
)
def test_a_role_that_is_missing_is_named(role_facts: RoleFacts, commands: list[str]) -> None:
    findings = list(check_roles(Settings(), NAMES, role_facts))

    assert [finding.state for finding in findings] == (
        [CheckState.WARNING] * len(commands) or [CheckState.OK]
    )
    assert [
        f"stream-dedup {command}" in finding.sentence
        for finding, command in zip(findings, commands, strict=False)
    ] == [True] * len(commands)


def test_a_group_that_works_for_another_filter_is_refused() -> None:
    """Its members read another topic; those that read this one are its own."""
    settings, names = Settings(group="one", topic_prefix="crawl"), TopicNames("crawl")

    check_by_state = [
        list(check_roles(settings, names, RoleFacts(1, 0, topics_read=frozenset(reads))))
        for reads in (["crawl.documents"], ["crawl.documents", "news.documents"])
    ]

    assert [[problem.state for problem in each] for each in check_by_state] == [
        [CheckState.OK],
        [CheckState.REFUSED],
    ]
    assert "read news.documents, so another filter uses this group" in check_by_state[1][0].sentence


def test_the_oldest_unanswered_request_is_named() -> None:
    """Also where a later one has its own: the topic of answers was deleted in between, or lost its
    end."""
    role_facts = RoleFacts(1, 8108, {40: 90_000, 41: 80_000, 42: 20_000}, frozenset({42}))

    (finding,) = check_roles(Settings(), NAMES, role_facts)

    assert finding.state is CheckState.WARNING
    assert (
        "Log offset 40 of fingerprints has not been answered for 90 s (the last answer is for offset "
        "42)" in finding.sentence
    )


def test_committed_requests_count_as_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers are kept for a day. The question that is open is named, not an older one, nor one
    from before a rewind."""

    def request(first: int, epoch: int) -> bytes:
        source = records.Source("documents", bytes(16), 3, epoch, 0)
        of_one = make_batch(10)
        return records.encode_batch(
            replace(
                of_one,
                sources=(source,),
                source=np.zeros(10, np.uint16),
                offset=np.arange(first, first + 10),
            )
        )

    log = [request(90, 0), request(0, 1), request(10, 1), request(20, 1), b"damaged"]

    def read(_: Settings, topic: str, part: int, first: int) -> Iterator[Message]:
        if topic == "fingerprints":
            yield from (
                Message(topic, part, offset, None, raw, 1, []) for offset, raw in enumerate(log)
            )

    monkeypatch.setattr(roles, "read_partition", read)
    admin = MagicMock()
    admin.group_members.return_value = 1
    admin.bounds.return_value = {
        ("fingerprints", 0): Bounds(0, len(log)),
        ("verdicts", 0): Bounds(77, 77),
    }
    admin.committed_or_last_known.return_value = {
        ("documents", 3): (20, epochs.to_metadata(1)),
        ("other", 3): (999, None),
    }

    role_facts = read_roles(admin, Settings(), 30)

    assert list(role_facts.request_ages_ms) == [3]
    assert (
        "Log offset 3 of fingerprints" in next(check_roles(Settings(), NAMES, role_facts)).sentence
    )
