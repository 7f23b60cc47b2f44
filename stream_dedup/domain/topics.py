"""Topics as code: their names, the files that declare them, and the changes that a cluster needs to
match the files.

The files in `topics/` (one Strimzi `KafkaTopic` each) declare the topics for the cluster, this
program and the tests; an installed package contains them in `stream_dedup/topic_files`.

Invariants: `plan` is a pure function; it never deletes or shrinks a topic, and never changes an
existing `documents`, which belongs to the crawler. Each output has at least as many partitions as
`documents`, and accepts at least the largest record of `documents` with our headers. `fingerprints`
and `begun` always have one partition, and a configuration that could trim or compact them is an
error.
"""

from __future__ import annotations

import enum
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stream_dedup.domain.errors import ConfigurationError, TopicExistsError
from stream_dedup.domain.printable import counted

HEADER_BUDGET_BYTES = 65_536
NAME_CHARACTERS_MAX = 249
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9.-]+\Z")
RECORD_BYTES = "max.message.bytes"
_MIN_ISR = "min.insync.replicas"

DOCUMENTS = "documents"
UNIQUE = "unique"
DUPLICATES = "duplicates"
DEAD_LETTERS = "dlq.documents"
FINGERPRINTS = "fingerprints"
VERDICTS = "verdicts"
BEGUN = "begun"
HOST_SIGNALS = "host-signals"
INSIGHTS_CHANGELOG = "insights-changelog"
ALL = (
    *(DOCUMENTS, UNIQUE, DUPLICATES, DEAD_LETTERS, FINGERPRINTS, VERDICTS, BEGUN),
    *(HOST_SIGNALS, INSIGHTS_CHANGELOG),
)

# The settings that name one topic, by the kind of the topic.
NAMED = {
    DOCUMENTS: "documents",
    UNIQUE: "unique",
    DUPLICATES: "duplicates",
    DEAD_LETTERS: "dead_letters",
}

# A filter in shadow mode writes a separate log, so that documents that it judged never count as
# delivered.
SHADOW = "shadow."
_LOGS = (FINGERPRINTS, VERDICTS, BEGUN)

# These follow `documents`: output partition = source partition.
_OUTPUTS = (UNIQUE, DUPLICATES, DEAD_LETTERS)
_SINGLE_PARTITION = (
    *(FINGERPRINTS, VERDICTS, BEGUN),
    *(HOST_SIGNALS, INSIGHTS_CHANGELOG),
)

# The required settings of topics that are kept for ever, and the failure that another value causes.
_IF_TRIMMED = (
    "old batches would be deleted, and on the next rebuild duplicates would become representatives"
)
_LOG_SETTINGS = {
    "cleanup.policy": ("delete", "compaction would remove batches from the log"),
    "retention.ms": ("-1", _IF_TRIMMED),
    "retention.bytes": ("-1", _IF_TRIMMED),
    "message.timestamp.type": (
        "LogAppendTime",
        "the time of the log would depend on the workers' clocks",
    ),
}
_IF_LOST = (
    "the list of started partitions would be lost, and if a group's offsets are lost, its documents "
    "would be delivered twice"
)
_FOR_EVER = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_REQUIRED_SETTINGS = {
    FINGERPRINTS: _LOG_SETTINGS,
    BEGUN: {name: (value, _IF_LOST) for name, value in _FOR_EVER.items()},
}


def normalise_prefix(prefix: str) -> str:
    """Return a topic prefix that ends in a dot or hyphen: `crawl` and `crawl.` are the same.

    Raises:
        ValueError: the prefix contains a character other than letters, digits, dots and hyphens, or
        makes names too long.
    """
    if not prefix:
        return ""
    if not _LEGAL_NAME.match(prefix):
        raise ValueError("must consist of letters, digits, dots and hyphens")
    if prefix[0] in ".-":
        raise ValueError("must begin with a letter or digit")
    prefix = prefix if prefix[-1] in ".-" else f"{prefix}."
    if len(prefix) + max(map(len, (*ALL, *(SHADOW + log for log in _LOGS)))) > NAME_CHARACTERS_MAX:
        raise ValueError(f"must leave topic names of at most {NAME_CHARACTERS_MAX} characters")
    return prefix


class _Name:
    """The full name of one of the topics of this module, as an attribute of `TopicNames`."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def __get__(self, names: TopicNames, _owner: type[TopicNames]) -> str:
        return names.named(self._topic)


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of all topics under one prefix (`TopicNames("crawl").documents` is
    `crawl.documents`).

    In shadow mode the topics of the log have other names: `shadow.fingerprints`, `shadow.verdicts`
    and `shadow.begun`. `names_by_kind` contains the full names of topics that do not use the
    prefix: `{"unique": "news_clean"}`.
    """

    prefix: str = ""
    is_shadow: bool = False
    names_by_kind: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", normalise_prefix(self.prefix))

    def named(self, topic: str) -> str:
        """Return the full name of one of the topics of this module."""
        name = self.names_by_kind.get(topic)
        return name or self.prefix + (
            SHADOW + topic if self.is_shadow and topic in _LOGS else topic
        )

    def setting_of(self, name: str) -> str | None:
        """Return the setting that names the topic `name`; None if its name uses the prefix."""
        return next(
            (NAMED[kind] for kind, topic in self.names_by_kind.items() if topic == name), None
        )

    documents = _Name(DOCUMENTS)  # from the crawler
    unique = _Name(UNIQUE)
    duplicates = _Name(DUPLICATES)
    dead_letters = _Name(DEAD_LETTERS)  # records that cannot be decoded or delivered
    fingerprints = _Name(FINGERPRINTS)  # the log: the source of truth; its order decides
    verdicts = _Name(VERDICTS)  # the index's answers
    begun = _Name(BEGUN)  # the partitions of source topics from which documents were read
    host_signals = _Name(HOST_SIGNALS)  # the latest signals of each host
    insights_changelog = _Name(INSIGHTS_CHANGELOG)  # the table behind the signals

    @property
    def outputs(self) -> tuple[str, str, str]:
        """Names of the output topics: unique, duplicates, dead letters."""
        return (self.unique, self.duplicates, self.dead_letters)

    def all(self) -> tuple[str, ...]:
        """Return the names of all topics, in the order of `ALL`."""
        return tuple(self.named(topic) for topic in ALL)


@dataclass(frozen=True, slots=True)
class Topic:
    """A declared topic. `name` is the full name on the cluster, `kind` the name in this module.

    `is_in_settings`: a setting names the topic, so it belongs to the user, and an existing one is
    not changed.
    """

    name: str
    kind: str
    partitions: int
    replicas: int
    config: Mapping[str, str]
    is_in_settings: bool = False


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as it is on the cluster.

    `config` contains every setting in force, as text; `replicas` is the smallest number of replicas
    of any partition.
    """

    name: str
    topic_id: bytes
    partitions: int
    config: Mapping[str, str]
    replicas: int

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted, with or without deletion of old records."""
        return "compact" in self.config.get("cleanup.policy", "")


class TopicAdmin(Protocol):
    """The methods of a Kafka admin client that planning and applying call."""

    def broker_count(self) -> int: ...  # noqa: D102

    def describe(self, names: Iterable[str]) -> Mapping[str, TopicState]: ...  # noqa: D102

    def create(  # noqa: D102
        self, name: str, partitions: int, replication_factor: int, config: dict[str, str]
    ) -> Any: ...

    def set_config(self, name: str, config: dict[str, str]) -> Any: ...  # noqa: D102

    def add_partitions(self, name: str, total: int) -> Any: ...  # noqa: D102


class Action(enum.StrEnum):
    """The action that a topic needs. `REFUSE`: no action is possible; the sentence says what an
    operator can do.
    """

    CREATE = "create"
    GROW = "grow"
    SET = "set"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class TopicChange:
    """One change that a topic on the cluster needs to match its declaration.

    `config` maps a setting to (present value or None, declared value); `partitions` is (present
    number, declared number).
    """

    topic: Topic
    action: Action
    sentence: str
    partitions: tuple[int, int] | None = None
    config: Mapping[str, tuple[str | None, str]] = field(default_factory=dict)


def topic_folder() -> Path:
    """Return the folder of the topic files: packaged in a wheel, `topics/` in a checkout.

    Raises:
        ConfigurationError: neither folder exists.
    """
    package_folder = Path(__file__).resolve().parents[1]
    for folder in (package_folder / "topic_files", package_folder.parent / "topics"):
        if folder.is_dir():
            return folder
    raise ConfigurationError(
        f"The topic files are neither in {package_folder / 'topic_files'} nor in {package_folder.parent / 'topics'}; "
        "install the package again."
    )


def read_topics(names: TopicNames | str = "", folder: Path | None = None) -> tuple[Topic, ...]:
    """Return the topics that the files in `folder` (default: `topic_folder()`) declare, in the
    order of `ALL`.

    Raises:
        ConfigurationError: files are missing, unreadable or contradictory; the message names all of
        them.
    """
    import yaml  # noqa: PLC0415 - callers that only need names do not import it

    folder = folder or topic_folder()
    names = TopicNames(names) if isinstance(names, str) else names
    topics, problems = [], []
    for kind in ALL:
        path = folder / f"{kind}.yaml"
        try:
            topic = _parse(
                yaml.safe_load(path.read_text(encoding="utf-8")), kind, names.named(kind)
            )
            topics.append(replace(topic, is_in_settings=kind in names.names_by_kind))
        except FileNotFoundError:
            problems.append(f"{path} does not exist; every topic needs a file")
        except (OSError, yaml.YAMLError, ValueError) as error:
            problems.append(f"{path}: {' '.join(str(error).split())}")
    problems += [] if problems else _contradictions(topics)
    if problems:
        raise ConfigurationError(
            "The topic files cannot be used:\n"
            + "\n".join(f"  - {problem}." for problem in problems)
        )
    return tuple(topics)


def fit_to_brokers(topics: Iterable[Topic], brokers: int) -> tuple[Topic, ...]:
    """Return `topics` for a small cluster of `brokers` brokers, such as one on a laptop.

    A topic gets at most as many replicas as there are brokers, and fewer in-sync replicas than
    replicas, at least 1.
    """
    fitted = []
    for topic in topics:
        replicas = min(topic.replicas, brokers)
        in_sync = min(int(topic.config.get(_MIN_ISR, "1")), max(1, replicas - 1))
        config = {**topic.config, _MIN_ISR: str(in_sync)}
        fitted.append(
            replace(topic, replicas=replicas, config=config) if replicas < topic.replicas else topic
        )
    return tuple(fitted)


def with_partitions(topics: Iterable[Topic], partitions: int) -> tuple[Topic, ...]:
    """Return `topics` with `partitions` partitions for `documents` and the outputs."""
    return tuple(
        topic if topic.kind in _SINGLE_PARTITION else replace(topic, partitions=partitions)
        for topic in topics
    )


def plan(desired: Sequence[Topic], existing: Mapping[str, TopicState]) -> list[TopicChange]:
    """Return the changes that make `existing` (by full name) match `desired`; an empty list if
    they match.
    """
    changes: list[TopicChange] = []
    documents = next(
        (existing.get(topic.name) for topic in desired if topic.kind == DOCUMENTS), None
    )
    for declared in desired:
        topic = (
            _follow(declared, documents) if documents and declared.kind in _OUTPUTS else declared
        )
        state = existing.get(topic.name)
        if state is None:
            text = (
                f"{topic.name} does not exist: create it with "
                f"{counted(topic.partitions, 'partition')}."
            )
            changes.append(TopicChange(topic, Action.CREATE, text, (0, topic.partitions)))
        elif topic.kind != DOCUMENTS and not topic.is_in_settings:
            changes += _changes(topic, state)
    return changes


def refusals(changes: Iterable[TopicChange]) -> list[str]:
    """Return the sentences of the changes that cannot be made."""
    return [change.sentence for change in changes if change.action is Action.REFUSE]


def replicas_problem(changes: Iterable[TopicChange], brokers: int) -> str | None:
    """Return a sentence if the changes need more replicas than there are brokers, else None.

    The topics to create are checked, and those whose min.insync.replicas changes, because a value
    above their replicas would make them unwritable.
    """
    checked = [
        change for change in changes if change.action is Action.CREATE or _MIN_ISR in change.config
    ]
    replicas = max((change.topic.replicas for change in checked), default=0)
    if replicas <= brokers:
        return None
    return (
        f"The topics are declared with {replicas} replicas, and the cluster has "
        f"{counted(brokers, 'broker')}. Start the other brokers; for a test cluster, add "
        "--fit-brokers."
    )


def apply(changes: Sequence[TopicChange], admin: TopicAdmin) -> None:
    """Apply changes in their order.

    Raises:
        ConfigurationError: a change cannot be made; then no change is applied.
        BrokerError: the admin client failed; the changes before are applied, and a new plan
        contains the rest.
    """
    if refused := refusals(changes):
        raise ConfigurationError("\n".join(refused))
    for change in changes:
        topic = change.topic
        if change.action is Action.CREATE:
            admin.create(topic.name, topic.partitions, topic.replicas, dict(topic.config))
        elif change.action is Action.GROW:
            admin.add_partitions(topic.name, topic.partitions)
        else:
            admin.set_config(
                topic.name, {name: declared for name, (_, declared) in change.config.items()}
            )


# Wait before a new plan: a topic that was just created may be missing in a broker's list.
_REPLAN_SECONDS = 0.1


class TopicPlan(NamedTuple):
    """The declared topics, and the changes that they need."""

    declared: Sequence[Topic]
    changes: list[TopicChange]


def plan_cluster(
    admin: TopicAdmin,
    names: TopicNames,
    folder: Path | None = None,
    partitions: int | None = None,
    *,
    fit_brokers: bool,
) -> TopicPlan:
    """Compare a cluster with the topics that the files of `folder` declare.

    `partitions` replaces the declared number; `fit_brokers` lowers the number of replicas to that
    of the brokers.

    Raises:
        ConfigurationError: a file is invalid, or the cluster has too few brokers.
        BrokerError: Kafka does not answer.
    """
    declared: Sequence[Topic] = read_topics(names, folder)
    if partitions is not None:
        declared = with_partitions(declared, partitions)
    brokers = admin.broker_count()
    if fit_brokers:
        declared = fit_to_brokers(declared, brokers)
    changes = plan(declared, admin.describe([topic.name for topic in declared]))
    if problem := replicas_problem(changes, brokers):
        raise ConfigurationError(problem)
    return TopicPlan(declared, changes)


def apply_to_cluster(
    admin: TopicAdmin,
    names: TopicNames,
    folder: Path | None = None,
    partitions: int | None = None,
    *,
    fit_brokers: bool,
) -> TopicPlan:
    """Plan and apply; plan again if another program creates one of the topics at the same time.

    Each new plan finds at least one more topic, so there are at most as many plans as topics.
    Return the last plan.
    """
    topic_plan = plan_cluster(admin, names, folder, partitions, fit_brokers=fit_brokers)
    for attempts_left in reversed(range(len(topic_plan.declared))):
        try:
            apply(topic_plan.changes, admin)
        except TopicExistsError:
            if not attempts_left:
                raise
            time.sleep(_REPLAN_SECONDS)
            topic_plan = plan_cluster(admin, names, folder, partitions, fit_brokers=fit_brokers)
        else:
            break
    return topic_plan


def log_problems(name: str, state: TopicState, kind: str = FINGERPRINTS) -> list[str]:
    """Return sentences that say why the existing topic `name` cannot be the log (or `begun`); no
    role may start until they are resolved.
    """
    problems = []
    if state.partitions != 1:
        problems.append(_too_many_partitions(name, state.partitions))
    for setting, (required, consequence) in _REQUIRED_SETTINGS[kind].items():
        value = state.config.get(setting)
        if value != required:
            problems.append(
                f"The topic {name} has {setting}={value}, and must have {required}: {consequence}. Run "
                "`stream-dedup topics apply`."
            )
    return problems


def removed_from_log(log: str, low: int) -> str:
    """Return the message for a log that begins at the offset `low` above 0, and what to do."""
    return (
        f"The log {log} begins at offset {low}, so records of it were removed. Indexes that have "
        "applied them continue, with correct verdicts. No worker can start, and a new index can "
        "start only from a snapshot (STREAM_DEDUP_SNAPSHOTS). Restore the log from a backup, or "
        "start with an empty log under another STREAM_DEDUP_TOPIC_PREFIX."
    )


def as_rows(topic_plan: TopicPlan) -> list[dict[str, object]]:
    """Return a plan as rows for a table or JSON: one for each change, and one for each topic
    without changes.
    """
    rows: list[dict[str, object]] = []
    for topic in topic_plan.declared:
        topic_changes = [change for change in topic_plan.changes if change.topic.name == topic.name]
        for change in topic_changes:
            config = {
                name: {"current": present, "new": declared}
                for name, (present, declared) in change.config.items()
            }
            row: dict[str, object] = {
                "topic": topic.name,
                "action": change.action.value,
                "sentence": change.sentence,
            }
            if change.partitions:
                row["partitions"] = {"current": change.partitions[0], "new": change.partitions[1]}
            rows.append(row | ({"config": config} if config else {}))
        if not topic_changes:
            rows.append(
                {
                    "topic": topic.name,
                    "action": "none",
                    "sentence": f"{topic.name} {_why_unchanged(topic)}.",
                }
            )
    return rows


def _why_unchanged(topic: Topic) -> str:
    if topic.kind == DOCUMENTS:
        return "belongs to the crawler, and is not changed"
    if topic.is_in_settings:
        return "is named in the settings, and is not changed; `stream-dedup doctor` checks it"
    return "is correct"


def _parse(content: object, kind: str, name: str) -> Topic:
    if not isinstance(content, dict) or content.get("kind") != "KafkaTopic":
        raise ValueError("it does not contain a Strimzi KafkaTopic")
    metadata, spec = content.get("metadata"), content.get("spec")
    if not isinstance(metadata, dict) or not isinstance(spec, dict):
        raise ValueError("it does not contain `metadata` or `spec`")  # noqa: TRY004 - the caller expects a ValueError
    if metadata.get("name") != kind:
        raise ValueError(
            f"metadata.name is {metadata.get('name')!r}, and must be {kind!r}, the name of the file"
        )
    numbers = {key: spec.get(key) for key in ("partitions", "replicas")}
    for key, number in numbers.items():
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ValueError(f"spec.{key} is {number!r}, and must be a whole number of at least 1")
    config = spec.get("config") or {}
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise ValueError("spec.config must contain names and values")
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in config.items()
    }
    return Topic(name, kind, int(spec["partitions"]), int(spec["replicas"]), texts)


def _contradictions(topics: Sequence[Topic]) -> list[str]:
    by_kind = {topic.kind: topic for topic in topics}
    problems = [
        f"{kind} must have 1 partition, and is declared with {by_kind[kind].partitions}"
        for kind in _SINGLE_PARTITION
        if by_kind[kind].partitions != 1
    ]
    problems += [
        f"{kind} must have as many partitions as documents ({by_kind[DOCUMENTS].partitions}), "
        f"and is declared with {by_kind[kind].partitions}"
        for kind in _OUTPUTS
        if by_kind[kind].partitions < by_kind[DOCUMENTS].partitions
    ]
    problems += [
        f"{kind} must have {setting}={required}, and is declared with {value}: {consequence}"
        for kind, settings in _REQUIRED_SETTINGS.items()
        for setting, (required, consequence) in settings.items()
        if (value := by_kind[kind].config.get(setting)) != required
    ]
    return problems


def _follow(topic: Topic, documents: TopicState) -> Topic:
    """Return an output topic with the partitions and record size that `documents` needs."""
    config = dict(topic.config)
    largest = documents.config.get(RECORD_BYTES, "")
    if largest.isdigit() and RECORD_BYTES in config:
        # A dead letter may be an output record that was too large, so it gets the budget twice.
        budget = HEADER_BUDGET_BYTES * (2 if topic.kind == DEAD_LETTERS else 1)
        config[RECORD_BYTES] = str(max(int(config[RECORD_BYTES]), int(largest) + budget))
    return replace(topic, partitions=documents.partitions, config=config)


def _changes(topic: Topic, state: TopicState) -> list[TopicChange]:
    changes = []
    if state.partitions > topic.partitions and topic.kind in _SINGLE_PARTITION:
        counts = (state.partitions, topic.partitions)
        sentence = _too_many_partitions(topic.name, state.partitions)
        changes.append(TopicChange(topic, Action.REFUSE, sentence, counts))
    elif state.partitions < topic.partitions:
        counts = (state.partitions, topic.partitions)
        sentence = (
            f"{topic.name} has {counted(state.partitions, 'partition')}: grow it to "
            f"{topic.partitions}."
        )
        changes.append(TopicChange(topic, Action.GROW, sentence, counts))
    # More in-sync replicas than a topic has would make it unwritable.
    fitting = (
        {_MIN_ISR: str(min(int(topic.config[_MIN_ISR]), state.replicas))}
        if _MIN_ISR in topic.config
        else {}
    )
    config = {
        name: (state.config.get(name), declared)
        for name, declared in sorted({**topic.config, **fitting}.items())
        if not _is_satisfied(topic, name, state.config.get(name), declared)
    }
    if config:
        parts = ", ".join(
            f"{name} from {present} to {declared}" for name, (present, declared) in config.items()
        )
        sentence = f"{topic.name}: set {parts}."
        dangers = [
            consequence
            for name, (_, consequence) in _REQUIRED_SETTINGS.get(topic.kind, {}).items()
            if name in config
        ]
        if dangers:
            topic_text = "the log" if topic.kind == FINGERPRINTS else topic.name
            sentence += f" Otherwise {dangers[0]}; if that has happened already, {topic_text} is incomplete."
        changes.append(TopicChange(topic, Action.SET, sentence, config=config))
    return changes


def _is_satisfied(topic: Topic, name: str, present: str | None, declared: str) -> bool:
    if (
        present is not None
        and name == RECORD_BYTES
        and topic.kind in _OUTPUTS
        and present.isdigit()
        and declared.isdigit()
    ):
        return int(present) >= int(declared)
    return present == declared


def _too_many_partitions(name: str, partitions: int) -> str:
    return (
        f"The topic {name} has {partitions} partitions and must have one, because its offsets "
        "order all its records; partitions cannot be removed. Choose another "
        "STREAM_DEDUP_TOPIC_PREFIX; the filter starts with empty topics under it."
    )
