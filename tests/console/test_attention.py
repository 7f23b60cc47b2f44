"""How the console reads Kafka: what needs attention, and what repeated reads leave behind."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stream_dedup.console import attention, outputs
from stream_dedup.console.assembly import read_plans
from stream_dedup.console.attention import Attention
from stream_dedup.console.outputs import OutputRecords, OutputsFollower, count_uncommitted
from stream_dedup.console.recent_decisions import KEEP, Recent
from stream_dedup.console.source_calls import BoundedCalls
from stream_dedup.console.values import Decision
from stream_dedup.domain.document import DeadLetter, Message, Position, TopicPartitionKey
from stream_dedup.domain.errors import BrokerError, StreamDedupError
from stream_dedup.indexer.api import IndexApi
from stream_dedup.kafka import Bounds, ExistingTopic, ReusedAdmin, admin
from stream_dedup.log import headers
from stream_dedup.preflight.roles import RoleFacts
from stream_dedup.serving.http import CachedAnswer
from stream_dedup.settings.settings import Settings
from tests.serving.serving import serving

NOW_MS = 1_764_000_000_000
DAY_MS = 86_400_000


class FakeCluster:
    """Topics of one partition with their records; reading the topic in `away` fails."""

    def __init__(self) -> None:
        self.topics: dict[str, list[Message]] = {
            "documents": [],
            "dlq.documents": [],
            "host-signals": [],
        }
        self.redriven: dict[TopicPartitionKey, tuple[int, str | None]] = {}
        self.roles = RoleFacts(workers=1, waiting=0)
        self.away = ""
        self.watchers = 0
        self.watched: dict[TopicPartitionKey, tuple[int, str | None]] = {}
        self.reads: list[dict[TopicPartitionKey, list[tuple[int, int]]]] = []

    def topic_ids(self, names: Sequence[str]) -> dict[str, ExistingTopic]:
        return {name: ExistingTopic(b"", 1) for name in names if name in self.topics}

    def bounds(self, keys: Sequence[TopicPartitionKey]) -> dict[TopicPartitionKey, Bounds]:
        if any(topic == self.away for topic, _ in keys):
            raise BrokerError(f"{self.away} is away.")
        return {key: Bounds(0, len(self.topics[key[0]])) for key in keys}

    def group_members(self, group: str) -> int:
        assert group.endswith("-insights")
        return self.watchers

    def committed_or_last_known(
        self, group: str
    ) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        return self.redriven if group.endswith("-redrive") else self.watched

    def read(
        self, _: Settings, spans: dict[TopicPartitionKey, list[tuple[int, int]]]
    ) -> Iterator[Message]:
        self.reads.append(spans)
        for (topic, _part), [(first, last)] in spans.items():
            yield from self.topics[topic][first:last]

    def add_letter(self, stage: str, kind: str, is_cut: bool = False) -> None:
        letters = self.topics["dlq.documents"]
        letter_headers = headers.of_dead_letter(
            DeadLetter(stage, kind, "Why."), Position("documents", b"", 0, 7), "group", 1
        )
        letter_headers += [(headers.ERROR_TRUNCATED, b"5000")] if is_cut else []
        letters.append(
            Message(
                "dlq.documents",
                0,
                len(letters),
                b"key",
                b"{",
                NOW_MS + len(letters),
                letter_headers,
            )
        )

    def add_signal(self, host: str, events: list[Any] | None, time_ms: int = NOW_MS) -> None:
        signals = self.topics["host-signals"]
        value = None if events is None else json.dumps({"host": host, "events": events}).encode()
        signals.append(Message("host-signals", 0, len(signals), host.encode(), value, time_ms, []))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    cluster = FakeCluster()
    monkeypatch.setattr(attention, "read_spans", cluster.read)
    monkeypatch.setattr(attention, "read_roles", lambda *_: cluster.roles)
    return cluster


@pytest.fixture
def new_attention(cluster: FakeCluster) -> Callable[[], Attention]:
    """Return a function that makes an `Attention` with an empty cache."""
    make: Any = lambda _: cluster  # noqa: E731
    return lambda: Attention(Settings(), ReusedAdmin(Settings(), make), lambda: NOW_MS)


def read_remarks(new_attention: Callable[[], Attention]) -> list[str]:
    return [remark.text for remark in new_attention().remarks()]


def test_a_healthy_system_has_no_remarks(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    """Without a topic of host signals the events are unknown; with calm hosts they are empty."""
    assert read_remarks(new_attention) == []
    assert new_attention().host_events() is None
    cluster.add_signal("calm.example", [])
    assert new_attention().host_events() == {}
    del cluster.topics["host-signals"]
    assert (read_remarks(new_attention), new_attention().host_events()) == ([], None)


def test_missing_insights_is_reported(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    """There is a remark only if the role has run before and now has no member."""
    for has_run, watchers, warns in ((False, 0, False), (True, 1, False), (True, 0, True)):
        cluster.watched = {("unique", 0): (4, None)} if has_run else {}
        cluster.watchers = watchers
        assert read_remarks(new_attention) == [
            problem for problem in [new_attention().insights_problem()] if problem
        ]
        assert (
            "the group stream-dedup-insights has no member" in new_attention().insights_problem()
        ) == warns


def test_records_that_no_role_reads_are_reported(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    cluster.roles = RoleFacts(workers=0, waiting=12, request_ages_ms={5: 60_000})

    worker, index = read_remarks(new_attention)

    assert "12 records of documents wait, but no worker is a member" in worker
    assert "Log offset 5 of fingerprints has not been answered" in index


def test_dead_letters_count_until_they_are_sent_back(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    for kind in ("decode", "decode", "fetch"):
        cluster.add_letter(kind, "Bad class")
    assert read_remarks(new_attention) == [
        "Dead letters that were not sent back: 3 (stage decode, fetch)."
    ]
    cluster.redriven = {("dlq.documents", 0): (1, "")}

    found = new_attention().dead_letters()

    assert [(kind.stage, kind.count, kind.not_sent_back) for kind in found.kinds] == [
        ("decode", 2, 1),
        ("fetch", 1, 1),
    ]
    assert found.kinds[0].command == "stream-dedup dlq redrive --stage decode --class 'Bad class'"
    assert [
        (letter.position, letter.source_position, letter.is_sent_back) for letter in found.letters
    ] == [
        ("dlq.documents-0@2", "documents-0@7", False),
        ("dlq.documents-0@1", "documents-0@7", False),
        ("dlq.documents-0@0", "documents-0@7", True),
    ]
    cluster.redriven = {("dlq.documents", 0): (3, "")}
    assert read_remarks(new_attention) == []


def test_a_truncated_dead_letter_stays_listed(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    """The remark no longer counts it after `dlq redrive` has skipped it."""
    for kind, is_cut in (("A", True), ("A", False), ("B", False)):
        cluster.add_letter("decode", kind, is_cut)
    assert read_remarks(new_attention) == [
        "Dead letters that were not sent back: 3 (stage decode)."
    ]
    cluster.redriven = {("dlq.documents", 0): (2, "")}

    found = new_attention().dead_letters()

    assert [
        (kind.error_class, kind.not_sent_back, kind.cannot_be_sent_back) for kind in found.kinds
    ] == [
        ("A", 0, 1),
        ("B", 1, 0),
    ]
    assert [(letter.is_sent_back, letter.can_be_sent_back) for letter in found.letters] == [
        (False, True),
        (True, True),
        (False, False),
    ]
    assert read_remarks(new_attention) == [
        "Dead letters that were not sent back: 1 (stage decode)."
    ]


def test_only_the_newest_dead_letters_are_read(
    cluster: FakeCluster, new_attention: Callable[[], Attention], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "LETTERS", 2)
    for _ in range(3):
        cluster.add_letter("decode", "X")

    found = new_attention().dead_letters()

    assert (found.count, found.is_whole, found.letters[-1].position) == (
        2,
        False,
        "dlq.documents-0@1",
    )
    assert read_remarks(new_attention) == [
        "Dead letters that were not sent back: 2 of the newest 2 (stage decode)."
    ]


def test_hosts_are_reported_by_their_latest_signal(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    """Events that ended, were forgotten, are over a day old or are invalid are not reported."""
    vanishing = [{"event": "vanishing", "documents": 60}]
    cluster.add_signal("gone.example", vanishing)
    cluster.add_signal(
        "page.example",
        [{"event": "one-page", "documents": 25, "position": "documents-0@8", "of": "https://x/"}],
    )
    for host, events in (("ended.example", []), ("forgotten.example", None)):
        cluster.add_signal(host, vanishing)
        cluster.add_signal(host, events)
    cluster.add_signal("old.example", vanishing, NOW_MS - DAY_MS - 1)
    cluster.add_signal("odd.example", [7])

    assert read_remarks(new_attention) == [
        "gone.example: nearly all documents of this host (60) were dropped as copies",
        "page.example: about 25 pages were dropped as copies of one page",
    ]


def test_a_failed_check_is_reported_beside_the_others(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    cluster.add_signal("gone.example", [{"event": "vanishing", "documents": 60}])
    cluster.away = "dlq.documents"

    found = new_attention().remarks()

    assert [(remark.level, remark.text) for remark in found[1:]] == [
        ("not checked", "dlq.documents is away.")
    ]
    assert (found[0].link, found[0].host, found[0].weight) == (
        "decisions?host=gone.example",
        "gone.example",
        60,
    )


def test_a_running_check_answers_others_from_the_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ten readers must not take all threads; a check that failed clears the cache."""
    answers, answers_meanwhile, now = iter([1, 2]), [], [0.0]
    monkeypatch.setattr(attention.time, "monotonic", lambda: now[0])

    def look() -> int:
        found = next(answers, 0)
        if found == 2:
            answers_meanwhile.append(others.submit(cached).result(timeout=10))
        if not found:
            raise BrokerError("away")
        return found

    cached = attention._Cached(look)
    with ThreadPoolExecutor() as others:
        assert cached() == 1
        now[0] += attention.KEEP_SECONDS
        assert (cached(), answers_meanwhile) == (2, [1])
    now[0] += attention.KEEP_SECONDS
    for _ in range(2):
        with pytest.raises(BrokerError):
            cached()


def test_findings_are_read_once_and_cached(
    cluster: FakeCluster, new_attention: Callable[[], Attention]
) -> None:
    cluster.add_letter("decode", "X")
    findings = new_attention()

    assert len({id(findings.dead_letters()) for _ in range(5)}) == 1
    findings.remarks()
    assert len(cluster.reads) == 1


def test_each_check_continues_from_the_last(
    cluster: FakeCluster, new_attention: Callable[[], Attention], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records are read once; a recreated topic is read from its start."""
    monkeypatch.setattr(attention, "KEEP_SECONDS", 0)
    for name in ("decode", "decode", "fetch"):
        cluster.add_letter(name, "X")
        cluster.add_signal(f"{name}.example", [{"event": "vanishing", "documents": 60}])
    findings, letters, signals = new_attention(), ("dlq.documents", 0), ("host-signals", 0)
    findings.remarks()
    findings.remarks()
    assert cluster.reads == [{letters: [(0, 3)]}, {signals: [(0, 3)]}]
    cluster.add_letter("size", "X")
    cluster.add_signal("decode.example", [])
    assert (findings.dead_letters().count, list(findings.host_events() or ())) == (
        4,
        ["fetch.example"],
    )
    assert cluster.reads[2:] == [{letters: [(3, 4)]}, {signals: [(3, 4)]}]
    cluster.topics["dlq.documents"].clear()
    cluster.add_letter("field", "X")
    assert [kind.stage for kind in findings.dead_letters().kinds] == ["field"]


def test_the_refusal_of_an_index_is_shown() -> None:
    for routes, sentence in (
        (IndexApi().routes(), "still opening its volume"),
        ([], "This path does not exist"),
    ):
        pattern = rf"^The index at http://127.0.0.1:\d+ answers: .*{sentence}"
        with serving(routes) as server, pytest.raises(StreamDedupError, match=pattern):
            read_plans(f"http://127.0.0.1:{server.port}")


# -- repeated reads use one client, and an outage leaves no threads or memory behind


OUTAGES = 10
TASKS = Path("/proc/self/task")


class FakeAdmin:
    """An admin client of empty topics with one partition; it counts its instances."""

    made = 0
    is_away = False
    members = frozenset({"worker-a"})
    readers = frozenset({"insights-a"})

    def __init__(self, _: Settings) -> None:
        type(self).made += 1

    def topic_ids(self, names: Sequence[str]) -> dict[str, ExistingTopic]:
        if self.is_away:
            raise BrokerError("away")
        return dict.fromkeys(names, ExistingTopic(b"", 1))

    def bounds(self, keys: Iterable[TopicPartitionKey]) -> dict[TopicPartitionKey, Bounds]:
        return dict.fromkeys(keys, Bounds(0, 0))

    def committed_or_last_known(self, _: str) -> dict[TopicPartitionKey, tuple[int, str | None]]:
        return {}

    def member_ids(self, group: str) -> frozenset[str]:
        return self.readers if group == "stream-dedup-insights" else self.members


def follower_of(records: OutputRecords) -> OutputsFollower:
    return OutputsFollower(records._settings, records, Recent(), threading.Event())


def test_one_client_is_reused_until_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client has its own threads and memory, so a new one is made only after a failure."""
    records = OutputRecords(Settings())
    records.kafka = ReusedAdmin(Settings(), FakeAdmin)  # type: ignore[arg-type]
    follower, lag = (
        follower_of(records),
        partial(records.kafka.ask, partial(count_uncommitted, Settings())),
    )

    for _ in range(OUTAGES):
        follower.read_new_records()
        assert set(lag().values()) == {0}
    assert FakeAdmin.made == 1

    monkeypatch.setattr(FakeAdmin, "is_away", True)
    for request in (follower.read_new_records, lag):
        with pytest.raises(BrokerError, match="away"):
            request()
    monkeypatch.setattr(FakeAdmin, "is_away", False)
    follower.read_new_records()
    follower.read_new_records()
    assert FakeAdmin.made == 3


@pytest.mark.parametrize(
    ("role", "subject"), [("members", "Workers"), ("readers", "Replicas of insights")]
)
def test_a_role_that_restarts_leaves_a_mark(
    monkeypatch: pytest.MonkeyPatch, role: str, subject: str
) -> None:
    """Only changed members leave a mark; the first members that are seen do not."""
    records = OutputRecords(Settings())
    records.kafka = ReusedAdmin(Settings(), FakeAdmin)  # type: ignore[arg-type]
    follower = follower_of(records)
    for members, marks in (("a", 0), ("a", 0), ("b", 1), ("bc", 2)):
        monkeypatch.setattr(FakeAdmin, role, frozenset(members))
        follower.read_new_records()
        assert len(follower._recent.figures_of().marks) == marks
    assert (
        follower._recent.figures_of().marks[-1].text
        == f"{subject} joined or left; their number is 2."
    )


def test_skipped_records_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the start and in a flood, of each partition; from when on all were read is the time of the
    first record that was. What a partition has after newer records is newest, also an old record."""
    ends = {("unique", 0): (0, 30), ("duplicates", 0): (0, 5000)}
    reported_ms: list[int] = []
    added: list[list[Decision]] = []

    def read(
        _: Settings, spans: dict[TopicPartitionKey, list[tuple[int, int]]]
    ) -> Iterator[Message]:
        for (topic, part), [(first, last)] in spans.items():
            yield from (
                Message(topic, part, offset, b"k", b"{}", 1_000 + offset * (offset != 29), [])
                for offset in range(first, last)
            )

    records = OutputRecords(Settings())
    monkeypatch.setattr(records.kafka, "ask", lambda _: ends)
    monkeypatch.setattr(outputs, "read_spans", read)
    follower = follower_of(records)
    monkeypatch.setattr(
        follower._recent,
        "add",
        lambda decisions, whole_since_ms: (
            added.append(decisions),
            reported_ms.append(whole_since_ms),
        ),
    )

    follower.read_new_records()
    ends["duplicates", 0] = (0, 5100)
    follower.read_new_records()
    ends["duplicates", 0] = (0, 9000)
    follower.read_new_records()

    assert reported_ms[:2] == [1_000 + 5_000 - math.ceil(5_000 * (KEEP - 2) / 5_030), 0]
    assert reported_ms[2] == 1_000 + 8_000
    assert len(added[0]) <= KEEP
    (place,) = [
        place for place, read in enumerate(added[0]) if read.output_position == "unique-0@29"
    ]
    assert added[0][place - 1].output_position == "unique-0@28"


def test_an_unreachable_broker_is_reported_within_two_seconds() -> None:
    """The first page reports it, and the client stays for the next request."""
    records = OutputRecords(Settings(kafka_bootstrap_servers="127.0.0.1:1"))

    assert outputs.ANSWER_SECONDS < 2
    assert records.kafka_problem() == "Kafka at 127.0.0.1:1 does not answer (Connection refused)."
    client = records.kafka._admin
    assert records.kafka_problem()
    assert client is records.kafka._admin is not None


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("run_call", [BoundedCalls(1, 60), lambda call: CachedAnswer(call).get()])
def test_a_failed_request_keeps_no_client(
    run_call: Callable[[Callable[[], None]], Awaitable[None]],
) -> None:
    """The error crosses a thread and a task; its traceback must keep no objects alive."""
    clients: list[weakref.ref[FakeAdmin]] = []

    def fail() -> None:
        client = FakeAdmin(Settings())
        clients.append(weakref.ref(client))
        raise BrokerError("away")

    async def ask() -> None:
        for _ in range(OUTAGES):
            with pytest.raises(BrokerError, match="away"):
                await run_call(fail)

    asyncio.run(ask())
    until = time.monotonic() + 10
    while any(reference() for reference in clients) and time.monotonic() < until:
        time.sleep(0.01)  # the thread of the last answer releases it a moment later
    assert [reference() for reference in clients] == [None] * OUTAGES


@pytest.mark.skipif(not TASKS.is_dir(), reason="threads are counted in /proc")
@pytest.mark.usefixtures("without_collector")
def test_ten_outages_leave_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No librdkafka client stays after failed reads of the lag and of the outputs."""
    for name in ("_TIMEOUT_SECONDS", "_FIRST_REQUEST_SECONDS", "_METADATA_SECONDS"):
        monkeypatch.setattr(admin, name, 0.05)
    nobody = Settings(kafka_bootstrap_servers="127.0.0.1:1")
    records = OutputRecords(nobody)
    follower, lag = (
        follower_of(records),
        partial(records.kafka.ask, partial(count_uncommitted, nobody)),
    )
    before = len(list(TASKS.iterdir()))

    for _ in range(OUTAGES):
        for request in (follower.read_new_records, lag):
            with pytest.raises(BrokerError):
                request()

    until = time.monotonic() + 10
    while len(list(TASKS.iterdir())) > before and time.monotonic() < until:
        time.sleep(0.02)
    assert len(list(TASKS.iterdir())) <= before
