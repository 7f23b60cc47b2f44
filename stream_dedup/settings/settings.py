"""One frozen settings object, read from flags, the environment and a file, and checked as a whole at start.

    flag  >  environment STREAM_DEDUP_*  >  file (TOML or YAML, STREAM_DEDUP_CONFIG)  >  input preset  >  default

Invariants: a `Settings` that exists is valid; every value knows its `Origin`; everything that is wrong is reported at
once, each in a sentence; an unknown STREAM_DEDUP_* variable or key is an error, because a misspelt setting that is
silently ignored is the worst of all; a secret appears neither in `repr`, nor in `shown()`, nor in an error.

`kafka` holds librdkafka properties. In the environment they follow the rule of the Apache Kafka image: `.` is written
`_`, `_` is written `__`, `-` is written `___`; so STREAM_DEDUP_KAFKA_SASL_PASSWORD is `sasl.password`. For the secret
ones, and for `sasl.username`, a variable that ends in `_FILE` names a file which holds the value.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeAlias

import platformdirs
import yaml
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    FilePath,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from stream_dedup.ground.document import Mode
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.failpoints import VARIABLE as FAILPOINT_VARIABLE
from stream_dedup.ground.plan import parse as parse_plan
from stream_dedup.ground.topics import TopicNames, normalise_prefix
from stream_dedup.settings.presets import PRESETS

PREFIX = "STREAM_DEDUP_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"
MASK = "******"
_DEFAULT_RECIPE = "words"
_KAFKA_PREFIX = PREFIX + "KAFKA_"
# Settings with a flag of their own on some command; all others are set with `--set NAME=VALUE`.
_OWN_FLAGS = {"kafka_bootstrap_servers": "--bootstrap-servers", "first_start": "--first-start"}
# Read where they are needed, before there are settings: CACHE_DIR by `compiled.py`, when a kernel is first imported.
_NOT_SETTINGS = frozenset({CONFIG_VARIABLE, FAILPOINT_VARIABLE, PREFIX + "CACHE_DIR"})

# Decided by the protocol between worker, log and index: changing one would break "exactly once".
_DECIDED_PROPERTIES = {
    "bootstrap.servers": f"set {PREFIX}KAFKA_BOOTSTRAP_SERVERS instead",
    "metadata.broker.list": f"set {PREFIX}KAFKA_BOOTSTRAP_SERVERS instead",
    "group.id": f"set {PREFIX}GROUP instead",
    "transactional.id": f"it is made of the group and {PREFIX}WORKER_ID; set those instead",
    "group.instance.id": "static membership would keep a dead worker's partitions; remove it",
    "enable.auto.commit": "offsets are committed within the transaction only; remove it",
    "enable.auto.offset.store": "offsets are committed within the transaction only; remove it",
    "auto.offset.reset": "where to start is never guessed; remove it",
    "isolation.level": "only committed documents are read; remove it",
    "partition.assignment.strategy": "it is cooperative-sticky, on which the worker's hand-over relies; remove it",
    "enable.idempotence": "every producer is idempotent; remove it",
    "acks": "every write waits for all in-sync replicas; remove it",
    "request.required.acks": "every write waits for all in-sync replicas; remove it",
}
_SECRET_PROPERTY = re.compile(r"password|passphrase|secret|\.pem$|jaas|oauthbearer\.config$|private\.key$")
FROM_FILE_PROPERTIES = frozenset(
    {
        "sasl.username",
        "sasl.password",
        "sasl.oauthbearer.client.secret",
        "sasl.oauthbearer.config",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "ssl.key.password",
        "ssl.keystore.password",
        "ssl.key.pem",
        "ssl.certificate.pem",
        "ssl.ca.pem",
    }
)
_SHOWN_NAME = re.compile(r"[\w.-]*")
_QUOTED = re.compile(r"""\s*(?:'((?:[^'\\]|\\.)*)'|"(?:[^"\\]|\\.)*")""")
_MARK = re.compile(r"\W|<[a-z ]+>")  # a character or a kind of token, as parsers name what they expected
_PROPERTY_NAME = re.compile(r"[a-z][a-z0-9]*([._-][a-z0-9]+)*\Z")
# Kubernetes gives every container variables for every Service of its namespace; a Service called `stream-dedup-index`
# makes STREAM_DEDUP_INDEX_SERVICE_HOST and STREAM_DEDUP_INDEX_PORT=tcp://..., which nobody wrote and nobody reads.
_SERVICE_LINK_NAME = re.compile(r".*_SERVICE_HOST\Z|.*_SERVICE_PORT(_\w+)?\Z|.*_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?\Z")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp|sctp)://")

_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d|w))+\Z")
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_DURATION_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_BROKERS = r"^\s*[^\s,/]+:\d{1,5}\s*(,\s*[^\s,/]+:\d{1,5}\s*)*$"
_HOST = r"^[A-Za-z0-9.:_-]+$"
_NAME = r"^[A-Za-z0-9._-]{1,200}$"
_SHADOW_GROUP = "-shadow"
_PATTERNS = {
    _BROKERS: "host:port, or several of them separated by commas",
    _HOST: "a host name or an address, without a port",
    _NAME: "made of 1 to 200 letters, digits, dots, underscores and hyphens",
}
_BYTE_SIZE = TypeAdapter(ByteSize)


def parse_duration(value: object) -> timedelta:
    """Return a time written like `250ms`, `15m`, `30d` or `1h30m`.

    Raises:
        ValueError: it is not written so; a bare number is refused, because its unit would be a guess.
    """
    if isinstance(value, timedelta):
        return value
    text = str(value).strip().lower().replace(" ", "")
    if not _DURATION.match(text):
        raise ValueError("must be a time with its unit, such as 250ms, 30s, 15m, 12h or 30d")
    parts = _DURATION_PART.findall(text)
    try:
        return timedelta(milliseconds=sum(float(count) * _DURATION_UNIT_MS[unit] for count, unit in parts))
    except OverflowError as error:
        raise ValueError("must be a time of at most 999999999d") from error


def parse_size(value: object) -> int:
    """Return a size in bytes, written like `500MB` (10^6) or `1GiB` (2^30), or as a number of bytes.

    Raises:
        ValueError: it is not written so.
    """
    try:
        return int(_BYTE_SIZE.validate_python(value.strip() if isinstance(value, str) else value))
    except (ValidationError, OverflowError) as error:
        raise ValueError("must be a size such as 500MB, 1GiB or 65536") from error


def format_duration(value: timedelta) -> str:
    """Return a time as `parse_duration` reads it, in the largest unit that leaves a whole number."""
    total_ms = round(value.total_seconds() * 1000)
    for unit in ("w", "d", "h", "m", "s"):
        if total_ms and total_ms % _DURATION_UNIT_MS[unit] == 0:
            return f"{total_ms // _DURATION_UNIT_MS[unit]}{unit}"
    return f"{total_ms}ms"


def _no_bool(value: object) -> object:
    # YAML reads `on` and `yes` as booleans, and pydantic would take True for the number 1.
    if isinstance(value, bool):
        raise ValueError("must be a whole number")  # noqa: TRY004 - pydantic collects ValueError only
    return value


def _expand(value: object) -> object:
    try:
        return Path(value).expanduser() if isinstance(value, str | Path) and str(value) else value
    except RuntimeError as error:
        raise ValueError("must not begin with the home folder of a user who has none") from error


def parse_window(value: object) -> timedelta | None:
    """Return a time as `parse_duration` does; None for `none`, which is for ever.

    Raises:
        ValueError: it is neither.
    """
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    return parse_duration(value)


def _field_path(value: str) -> str:
    if not all(value.split(".")):
        raise ValueError("must be a dotted path of names, such as page.body")
    return value


Whole = BeforeValidator(_no_bool)
Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Size = Annotated[int, BeforeValidator(parse_size)]
Folder = Annotated[Path, BeforeValidator(_expand)]
ReadableFile = Annotated[FilePath, BeforeValidator(_expand)]
FieldPath = Annotated[str, AfterValidator(_field_path)]
Name = Annotated[str, Field(pattern=_NAME)]


Source: TypeAlias = Literal["flag", "environment", "file", "preset", "default"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: `source` is `flag`, `environment`, `file`, `preset` or `default`; `where` is its name there."""

    source: Source
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.where}".strip()


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One row of `config show`: the value as text with secrets masked, and where it came from."""

    name: str
    value: str
    origin: Origin


_LAYERS: ContextVar[tuple[Mapping[str, object], ...]] = ContextVar("stream_dedup_settings_layers", default=())


class Settings(BaseSettings):
    """Everything that can be set. Made by `load_settings`; built directly, it takes only what it is given."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_prefix=PREFIX,
        coerce_numbers_to_str=True,
        validate_default=False,
        hide_input_in_errors=True,
    )

    kafka_bootstrap_servers: str = Field(
        default="localhost:9092",
        pattern=_BROKERS,
        description="First brokers to ask, as `host:port`, separated by commas; the rest of the cluster is learnt "
        "from them. One is enough to start; two or three let a role start while one broker is down. "
        "`KAFKA_BOOTSTRAP_SERVERS` is honoured too, below the prefixed name.",
    )
    kafka: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Any librdkafka property, for TLS, SASL and tuning: `STREAM_DEDUP_KAFKA_<PROP>` with `.` written "
        "`_`, `_` written `__` and `-` written `___`, or a table `[kafka]` in the file. Secret ones can "
        "be given as a file: `STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE`. Values of `*.ms` and `*.bytes` may "
        "be written `15s`, `64MB`. Properties on which exactly-once rests are refused.",
    )
    topic_prefix: str = Field(
        default="",
        description="Put before every topic name (`crawl` gives `crawl.documents`), so that one prefixed ACL covers "
        "them and several filters share a cluster. Changing it later starts an empty filter beside the "
        "old one.",
    )
    mode: Literal["enforce", "annotate", "shadow"] = Field(
        default="enforce",
        description="`enforce`: duplicates leave on `duplicates`. `annotate`: every document leaves on `unique`, with its "
        "verdict on the headers, so that readers decide; may be changed to `enforce` and back at any restart. `shadow`: "
        "nothing leaves; verdicts show in metrics and on a log of its own (`shadow.fingerprints`), read by the group "
        "`GROUP-shadow`, beside a filter that delivers or before one does.",
    )
    group: Name = Field(
        default="stream-dedup",
        validate_default=True,
        description="Consumer group of the workers, and the first part of their transactional ids. Another group "
        "reads all documents again and needs a `fingerprints` topic of its own. In shadow mode `-shadow` is added.",
    )
    worker_id: Annotated[Name, Field(max_length=100)] | None = Field(
        default=None,
        description="Stable name of this worker, unique in the group; it ends the transactional id. Without one it "
        "is made of the host name and kept in the state folder. Two workers with one name fence each "
        "other off; a name that changes at each start leaves readers of `unique` waiting for the old "
        "transaction to time out.",
    )
    first_start: bool = Field(
        default=False,
        description="Confirms that a partition without a committed offset may be read from its beginning though it was "
        "begun before (the topic `begun` says so): group offsets vanish after seven idle days. Without it the worker ends "
        "there with code 78. Left on for good, it hides that.",
    )
    recipe: str = Field(
        default=_DEFAULT_RECIPE,
        description="How a text becomes a fingerprint: `words`, `chars`, `shingles`, `keywords`, `textrank`, `vector`; one of "
        "these with a width (`chars:64`); or five stages, `normalise | features | weights | hash | projection` (see "
        "`recipes.md`). Fingerprints of two recipes cannot be compared, so changing it needs a new `fingerprints` topic. "
        "One narrower than 128 bits needs a plan of its width, such as `classic` for 64.",
    )
    plan: str = Field(
        default="wide",
        description="Which fingerprints count as near. `wide`: 128 bits, 8 blocks, one block within 1 bit and the "
        "whole within 21, the shorter text with at least 75 % of the longer's features. `classic`: the textbook's 64 "
        "bits, 4 blocks, within 3 bits; cheaper to look up, and finds about half of the near-duplicates. Or in numbers, "
        "`WIDTH:BLOCKS:RADIUS:THRESHOLD`, as in `128:8:1:21:75%`. It is taken by the first worker of an empty log; later the "
        "log's own plan is in force.",
    )
    window: Annotated[timedelta | None, BeforeValidator(parse_window)] = Field(
        default=None,
        description="How long a kept document is compared with: `30d`. Older ones leave the index, which so keeps its size, "
        "and a later copy is unique again. None, or `none`: for ever. Time is that of the log, not of the "
        "documents. It is taken by the first worker of an empty log; later `stream-dedup declare` changes it.",
        json_schema_extra={"default_text": "none, for ever"},
    )
    window_refresh: bool = Field(
        default=False,
        description="Count the window from the last duplicate instead of from the kept document itself: what is seen again and "
        "again then stays a duplicate, and is written anew once in a sixteenth of the window. Taken and changed like "
        "`window`.",
    )
    log_ids: Literal["plain", "digest"] = Field(
        default="plain",
        description="How the log, the index and `dedup.of.id` name documents. `plain`: by their ids. `digest`: by a digest "
        "keyed with the recipe's key, so that no address ever enters the log, which is kept for ever; readers of "
        "`duplicates` then find the kept document by `dedup.of.position`. It is taken by the first worker of an empty log "
        "and cannot change later.",
    )
    key_file: ReadableFile | None = Field(
        default=None,
        description="File with the secret key of the feature hash. With it nobody outside can craft documents that "
        "collide; the key becomes part of the recipe, so losing or changing it means a new "
        "`fingerprints` topic. Without it a public demonstration key is used, with a warning.",
    )
    user_dictionary: ReadableFile | None = Field(
        default=None,
        description="Words for jieba's cut of Han that its dictionary lacks: a UTF-8 file in jieba's format, a line `word "
        "[frequency] [tag]` each; a frequency of 0 splits a word. Its content becomes part of the recipe, so "
        "changing it needs a new `fingerprints` topic.",
    )
    stop_words: ReadableFile | None = Field(
        default=None,
        description="Words that do not count: a UTF-8 file with a word a line, in any script; `#` begins a comment. Its "
        "content becomes part of the recipe, so changing it needs a new `fingerprints` topic.",
    )
    segmenter: Literal["pairs", "icu"] = Field(
        default="pairs",
        description="Where words are in scripts without spaces. `pairs`: every two neighbouring characters, which needs "
        "nothing and finds as much. `icu`: Japanese, Thai, Lao, Khmer and Burmese are cut by ICU's dictionaries, "
        "which need `stream-dedup[segment]`; readable features, at a fifth of the speed. Part of the recipe.",
    )
    han_variants: Literal["distinct", "same"] = Field(
        default="distinct",
        description="`same`: traditional Han is read as simplified, so that both spellings of a text are one text, also "
        "to the digest that tells `exact`. Part of the recipe.",
    )
    input_preset: Literal["raw", "nutch", "scrapy-cluster", "ache"] = Field(
        default="raw",
        description="Defaults that fit a crawler's own records; what is set explicitly wins. `nutch`: the JSON of its Kafka "
        "index writer, every field an array. `scrapy-cluster`: the page in `body` (with KAFKA_BASE_64_ENCODE also set "
        "`text_encoding` to `base64`). `ache`: its JSON, the page in `content` as base64. The last two need "
        "`stream-dedup[html]`. `raw` changes nothing.",
    )
    value_format: Literal["raw", "json", "confluent-json"] = Field(
        default="raw",
        description="`raw`: the record's value is the text. `json`: the text stands at `text_field` of an object. "
        "`confluent-json`: the same behind the five bytes of Confluent's serializers; no schema registry is asked. "
        "`raw` is the default because it fits every byte string and dead-letters nothing by a wrong "
        "guess; with JSON values it also judges the field names, dates and addresses around the text, "
        "and so finds fewer duplicates.",
    )
    text_field: FieldPath = Field(
        default="text",
        description="Dotted path of the text in a JSON value; a list there is joined. A document without it becomes "
        "a dead letter. Only with `value_format` `json` or `confluent-json`.",
    )
    text_is: Literal["text", "html"] = Field(
        default="text",
        description="`html`: the text is a web page, and its main text is judged, without navigation, banners and footers; "
        "needs `stream-dedup[html]`. A page that breaks the extractor, or takes more CPU than `page_cpu`, "
        "becomes a dead letter. Pages judged as `text` are near each other by their templates.",
    )
    page_cpu: Duration = Field(
        default=timedelta(seconds=2),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=1),
        description="How much CPU the extractor may take for one page before it becomes a dead letter, with `text_is` `html`. "
        "A page of 1 MB takes some 50 ms, one made to hurt takes hours. Of all workers of a group the same.",
    )
    text_encoding: Literal["plain", "base64"] = Field(
        default="plain",
        description="`base64` if the text is base64 of UTF-8 (of a page in any encoding it names, with `text_is` `html`), as "
        "some crawlers send it. A text that is not valid base64 becomes a dead letter.",
    )
    id_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's id in a JSON value; without it the record's key is the id. The id "
        "tells `unchanged` and `revised` (the same page again) from `exact` and `near` (another page). "
        "Only with values in JSON.",
    )
    time_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's time (RFC 3339, or milliseconds since 1970) in a JSON value; "
        "without it the record's timestamp is used. It is named on later duplicates and never decides. "
        "Only with values in JSON.",
    )
    scope_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of a site or tenant in a JSON value: a document is judged only against others with "
        "the same value there. Finds no duplicates across scopes. Only with values in JSON.",
    )
    allow_bypass: bool = Field(
        default=False,
        description="Honour the header `dedup.bypass: true` of a producer: pass the record on as unique without "
        "judging it. Lets whoever may write documents switch the filter off for them.",
    )
    batch_documents: Annotated[int, Whole] = Field(
        default=8000,
        ge=1,
        le=100_000,
        description="Most documents in one transaction; of large ones fewer, as `worker_memory` allows. A backlog moves in "
        "such batches; a lone document leaves at once. Larger costs memory and latency under load, smaller costs throughput "
        "(on two cores, transactions of 1,000 carried half as much as of 5,000, and of 8,000 an eighth more).",
    )
    batches_in_flight: Annotated[int, Whole] = Field(
        default=4,
        ge=1,
        le=64,
        description="Most batches that wait for the index at once. More hides a slow index at the cost of memory; "
        "fewer means less work repeated after an abort.",
    )
    worker_memory: Annotated[Size, Field(ge=384 << 20)] | None = Field(
        default=None,
        description="Most memory that a worker may take, such as `1GiB`. What it reads ahead, holds and sends is bounded by "
        "it, so large documents travel in smaller batches. Without it, the limit of the worker's control group, which is that "
        "of its pod or container; where there is none, a quarter of the machine's memory, at most 1 GiB.",
        json_schema_extra={"default_text": "the pod's limit"},
    )
    state_dir: Folder = Field(
        default_factory=lambda: Path(platformdirs.user_state_dir("stream-dedup")),
        description="Folder for what a role keeps between starts, such as the worker's name. Small.",
        json_schema_extra={"default_text": "the user's state folder"},
    )
    index_dir: Folder = Field(
        default_factory=lambda data: data["state_dir"] / "index",
        description="Folder of the index's RocksDB. Losing it costs a rebuild from the log, never correctness. A "
        "fast local disk; never shared by two index processes.",
        json_schema_extra={"default_text": "`index` in `state_dir`"},
    )
    index_memory: Annotated[Size, Field(ge=512 << 20)] | None = Field(
        default=None,
        description="Most memory that the index may take, such as `8GB`; without it, as much as its entries need (about "
        "150 bytes each with `wide`, 85 with `classic`). What does not fit lies in files in `index_dir` and makes looking up "
        "slower; when not even a third of it fits, the index stops and says how much it needs.",
    )
    http_host: str = Field(
        default="127.0.0.1",
        pattern=_HOST,
        description="Address on which probes and metrics are served. The loopback address keeps them on this "
        "machine; in a container it must be `0.0.0.0` (or `::`), or nothing can probe it.",
    )
    http_port: Annotated[int, Whole] = Field(
        default=8080,
        ge=0,
        le=65535,
        description="Port of probes and metrics; 0 takes any free port and logs it. `run all` gives the index the next one.",
    )
    fail_open: Duration | None = Field(
        default=None,
        description="How long a document waits for its verdict before it leaves as unique, with the reason `fail-open`; "
        "until the index answers again, those after it leave without waiting. Turns an outage of the index into kept "
        "duplicates instead of lag; never drops anything. Without it documents wait for as long as it takes.",
    )
    insights: bool = Field(
        default=True,
        description="The worker writes what the documents of each host did to the topic `insights`, one small record a second "
        "and after the commit, for `run insights`. It can lose a count and never holds up a document; without the topic, "
        "and in shadow mode, nothing is written.",
    )
    insights_host_header: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Header of a record that names its host, as a name or a URL. Without it, and where a record lacks it, the "
        "host is that of the document's id, if this is an absolute URL.",
    )
    insights_window: Duration = Field(
        default=timedelta(hours=24),
        ge=timedelta(minutes=1),
        le=timedelta(days=366),
        description="How far back a host's signals reach from its latest document. Longer is steadier, shorter is quicker to "
        "tell of a change. Changing it empties the windows.",
    )
    insights_interval: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="How often `run insights` writes the signals of hosts that sent something. Longer means fewer records on "
        "`host-signals`.",
    )
    insights_keep: Duration = Field(
        default=timedelta(days=30),
        ge=timedelta(minutes=1),
        le=timedelta(days=3660),
        description="A host that sent nothing for this long is forgotten: its record on `host-signals` becomes null.",
    )
    insights_hosts: Annotated[int, Whole] = Field(
        default=20_000,
        ge=1,
        le=5_000_000,
        description="Most hosts that are remembered, at up to 10 kB each; of more, those that sent nothing for longest are "
        "forgotten.",
    )
    livez_after: Duration = Field(
        default=timedelta(minutes=1),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="`/livez` fails when the role's loop has not turned for this long. Shorter restarts a hung role "
        "sooner; too short restarts one that is merely slow. Lag never fails it.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Least level that is logged. `debug` also shows tracebacks of expected errors and librdkafka's "
        "own debug lines, at the cost of volume.",
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="`json`: one object a line, for collectors; `console`: for people; `auto`: console on a "
        "terminal, else JSON.",
    )

    _origins: Mapping[str, Origin] = PrivateAttr(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Take the layers that `load_settings` read, highest first; it reads them itself to know each origin."""
        del env_settings, dotenv_settings, file_secret_settings
        return (init_settings, *(InitSettingsSource(settings_cls, dict(layer)) for layer in _LAYERS.get()))

    @field_validator("topic_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        return normalise_prefix(value)

    @field_validator("group")
    @classmethod
    def _keep_shadow_apart(cls, value: str, info: ValidationInfo) -> str:
        # A shadow that committed for the group that delivers would make it skip what it never delivered.
        is_shadow = info.data.get("mode") == "shadow" and not value.endswith(_SHADOW_GROUP)
        return value + _SHADOW_GROUP if is_shadow else value

    @field_validator("fail_open")
    @classmethod
    def _check_fail_open(cls, value: timedelta | None) -> timedelta | None:
        # Written out, because pydantic gives the limit of an optional time as Python code.
        if value is not None and not timedelta(seconds=1) <= value <= timedelta(days=1):
            raise ValueError("must be at least 1 second and at most 1 day")
        return value

    @field_validator("recipe")
    @classmethod
    def _check_recipe(cls, value: str) -> str:
        wanted = " ".join(value.lower().split())
        if wanted != _DEFAULT_RECIPE:
            from stream_dedup.fingerprinting.grammar import parse as parse_recipe  # noqa: PLC0415 - it takes a second

            try:
                parse_recipe(wanted)
            except ConfigurationError as error:
                sentence = str(error).removesuffix(".")
                raise ValueError(sentence[:1].lower() + sentence[1:]) from error
        return wanted

    @field_validator("plan")
    @classmethod
    def _check_plan(cls, value: str) -> str:
        try:
            parse_plan(value)
        except ConfigurationError as error:
            sentence = str(error).removesuffix(".")
            raise ValueError(sentence[:1].lower() + sentence[1:]) from error
        return value.strip().lower()

    @field_validator("text_field", "id_field", "time_field", "scope_field")
    @classmethod
    def _check_needs_json(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("value_format") == "raw":
            raise ValueError(f"needs {PREFIX}VALUE_FORMAT=json, because a raw value has no fields")
        return value

    @field_validator("window")
    @classmethod
    def _check_window(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and not timedelta(seconds=1) <= value <= timedelta(days=366_000):
            raise ValueError("must be at least 1 second and at most a thousand years, or none")
        return value

    @property
    def judging_mode(self) -> Mode:
        """The mode as log batches carry it."""
        return Mode[self.mode.upper()]

    @property
    def topic_names(self) -> TopicNames:
        """The names of the topics that these settings speak of."""
        return TopicNames(self.topic_prefix, is_shadow=self.mode == "shadow")

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Where each value came from, by field name; a Kafka property is called `kafka.<property>`."""
        return self._origins

    def origin(self, name: str) -> Origin:
        """Return where the value of `name` came from."""
        return self._origins.get(name, Origin("default"))

    def shown(self) -> Iterator[ShownSetting]:
        """Yield every setting as text, secrets masked, Kafka properties one by one."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "kafka":
                for prop, text in sorted(self.kafka.items()):
                    key = f"kafka.{prop}"
                    yield ShownSetting(key, MASK if is_secret(prop) else text, self.origin(key))
            else:
                yield ShownSetting(name, as_text(value), self.origin(name))


def is_secret(prop: str) -> bool:
    """Whether a librdkafka property's value must never be shown."""
    return _SECRET_PROPERTY.search(prop) is not None


def as_text(value: object) -> str:
    """Return a setting's value as one would write it in the environment."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return format_duration(value) if isinstance(value, timedelta) else str(value)


def child_environment(values: Mapping[str, object]) -> dict[str, str]:
    """Return the environment of a child process that gets these settings and no others of ours."""
    keep = {name: value for name, value in os.environ.items() if not name.startswith((PREFIX, "KAFKA_"))}
    keep |= {name: os.environ[name] for name in (f"{PREFIX}CACHE_DIR",) if name in os.environ}
    return keep | {environment_name(name): str(value) for name, value in values.items()}


def environment_name(name: str) -> str:
    """Return the environment variable of a field, or of a Kafka property called `kafka.<property>`."""
    if name.startswith("kafka."):
        prop = name.removeprefix("kafka.").replace("_", "__").replace("-", "___").replace(".", "_")
        return _KAFKA_PREFIX + prop.upper()
    return PREFIX + name.upper()


def load_settings(
    overrides: Mapping[str, object] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of flags (`overrides`; None means not given), environment, file and defaults.

    Kafka properties may stand in `overrides` as `kafka.<property>`. `file` wins over `STREAM_DEDUP_CONFIG`.

    Raises:
        ConfigurationError: something is wrong; the message lists everything that is, a sentence each.
    """
    settings, problems = check_settings(overrides, file, environ)
    if settings is None or problems:
        head = "The configuration cannot be used:" if len(problems) == 1 else (
            f"The configuration cannot be used, for {len(problems)} reasons:"
        )  # fmt: skip
        raise ConfigurationError("\n".join([head, *(f"  - {problem}" for problem in problems)]))
    return settings


def check_settings(
    overrides: Mapping[str, object] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[Settings | None, list[str]]:
    """Return (settings, problems) as `load_settings`, but with the problems as a list of sentences."""
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    sources: tuple[Source, ...] = ("flag", "environment", "file", "preset")
    layers = [_Layer(source, problems) for source in sources]
    _read_flags(layers[0], overrides or {})
    _read_environment(layers[1], environ)
    path = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if path is not None:
        _read_file(layers[2], path)
    _read_preset(layers)
    origins: dict[str, Origin] = {}
    for layer in layers:
        for name, origin in layer.origins.items():
            origins.setdefault(name, origin)
    token = _LAYERS.set(tuple(layer.values for layer in layers))
    try:
        settings = Settings()
    except ValidationError as error:
        problems += _sentences(error, origins)
        return None, problems
    finally:
        _LAYERS.reset(token)
    settings._origins = MappingProxyType(origins)
    return (None if problems else settings), problems


class _Layer:
    """What one place says: values by field name (`kafka` a dict), the origin of each, and what is wrong there."""

    def __init__(self, source: Source, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        self.values: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}

    def put(self, name: str, value: object, where: str) -> None:
        self.values[name] = value
        self.origins[name] = Origin(self.source, where)

    def put_property(self, prop: str, value: object, where: str) -> None:
        """Take one Kafka property, unless it is not ours to set."""
        if not _PROPERTY_NAME.match(prop):
            self.problems.append(f"{where} would be the Kafka property {_cut(_name(prop))}, which is not a property's name.")
        elif prop in _DECIDED_PROPERTIES:
            self.problems.append(
                f"{where} would set the Kafka property {prop}, which is not free: {_DECIDED_PROPERTIES[prop]}."
            )
        elif isinstance(value, bool):
            self.put_property(prop, str(value).lower(), where)
        elif isinstance(value, str | int | float):
            try:
                self.values.setdefault("kafka", {})[prop] = _property_value(prop, str(value))
            except ValueError as error:
                self.problems.append(f"{where} is {_cut(repr(value))}, but {error}.")
            self.origins[f"kafka.{prop}"] = Origin(self.source, where)
        else:
            self.problems.append(f"{where} must be a text or a number, and is a {type(value).__name__}.")


def _read_flags(layer: _Layer, overrides: Mapping[str, object]) -> None:
    for name, value in overrides.items():
        if value is None:
            continue
        where = _OWN_FLAGS.get(name, f"--set {name}")
        if name == "kafka" and isinstance(value, Mapping):
            for prop, text in value.items():
                layer.put_property(str(prop), text, f"--set kafka.{prop}")
        elif name.startswith("kafka."):
            layer.put_property(name.removeprefix("kafka."), value, where)
        elif name in Settings.model_fields and name != "kafka":
            layer.put(name, value, where)
        else:
            layer.problems.append(_unknown(f"The flag for {_cut(name)}", name, _field_names()))


def _read_environment(layer: _Layer, environ: Mapping[str, str]) -> None:
    by_variable = {environment_name(name): name for name in _field_names()}
    if environ.get(BOOTSTRAP_VARIABLE):
        layer.put("kafka_bootstrap_servers", environ[BOOTSTRAP_VARIABLE], BOOTSTRAP_VARIABLE)
    for variable, value in sorted(environ.items()):
        if not variable.upper().startswith(PREFIX) or variable in _NOT_SETTINGS or _is_service_link(variable, value):
            continue
        if variable in by_variable:
            # An empty variable is one that somebody left out: compose files and charts write `NAME=` for that.
            if value:
                layer.put(by_variable[variable], value, variable)
        elif variable.startswith(_KAFKA_PREFIX) and variable != _KAFKA_PREFIX:
            if value:
                _read_property_variable(layer, variable, value, environ)
        else:
            known = [*by_variable, CONFIG_VARIABLE, environment_name("kafka.sasl.password")]
            layer.problems.append(_unknown(f"The environment variable {_cut(variable)}", variable.upper(), known))


def _read_property_variable(layer: _Layer, variable: str, value: str, environ: Mapping[str, str]) -> None:
    prop = _property_of(variable)
    secret = prop.removesuffix(".file")
    if prop == secret or secret not in FROM_FILE_PROPERTIES:
        layer.put_property(prop, value, variable)
        return
    direct = variable.removesuffix("_FILE")
    if environ.get(direct):
        layer.problems.append(f"Both {direct} and {variable} are set; remove one of them.")
        return
    try:
        content = Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        layer.problems.append(f"{variable} names the file {_cut(value)}, which cannot be read: {_why(error)}.")
        return
    layer.put_property(secret, content.rstrip("\r\n"), f"{variable} ({value})")


def _read_file(layer: _Layer, path: Path) -> None:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        layer.problems.append(f"The configuration file {path} cannot be read: {_why(error)}.")
        return
    content: object
    try:
        if path.suffix.lower() == ".toml":
            content = tomllib.loads(text)
        elif path.suffix.lower() in (".yaml", ".yml"):
            content = yaml.safe_load(text)
        else:
            layer.problems.append(f"The configuration file {path} must end in .toml, .yaml or .yml.")
            return
    except (tomllib.TOMLDecodeError, yaml.YAMLError, RecursionError, ValueError, AttributeError) as error:
        # AttributeError is what PyYAML makes of a text that is marked as a time and is none.
        layer.problems.append(f"The configuration file {path} cannot be parsed: {_mistake(error)}.")
        return
    if content is None:
        return
    if not isinstance(content, dict):
        layer.problems.append(f"The configuration file {path} must hold names and values, as in `group: crawl`.")
        return
    for name, value in content.items():
        where = f"{_name(str(name))} in {path}"
        if name == "kafka" and isinstance(value, dict):
            for prop, inner in _flatten(value):
                layer.put_property(prop, inner, f"kafka.{_name(prop)} in {path}")
        elif name == "kafka":
            layer.problems.append(f"{where} must be a table of Kafka properties.")
        elif name in Settings.model_fields:
            if value is not None:
                layer.put(name, value, where)
        else:
            layer.problems.append(_unknown(_cut(where), str(name), _field_names()))


def _read_preset(layers: list[_Layer]) -> None:
    chosen = next((layer.values["input_preset"] for layer in layers if "input_preset" in layer.values), None)
    # A name that is none, or a value that is no name, is reported with all other values.
    for name, value in PRESETS.get(chosen, {}).items() if isinstance(chosen, str) else ():
        layers[-1].put(name, value, str(chosen))


def _flatten(table: Mapping[Any, object], head: str = "") -> Iterator[tuple[str, object]]:
    # TOML reads `sasl.password = "x"` as nested tables.
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{head}{name}.")
        else:
            yield f"{head}{name}", value


def _field_names() -> list[str]:
    return [name for name in Settings.model_fields if name != "kafka"]


def _property_of(variable: str) -> str:
    rule = {1: ".", 2: "_", 3: "-"}
    return re.sub("_{1,3}", lambda found: rule[len(found[0])], variable.removeprefix(_KAFKA_PREFIX)).lower()


def _property_value(name: str, text: str) -> str:
    # Units are read where librdkafka's own names say what it counts; a bare number is its own business.
    if is_secret(name):
        return text  # spaces around it may be part of it
    text = text.strip()
    if text.lstrip("-").isdigit():
        return text
    if name.endswith(".ms"):
        return str(round(parse_duration(text).total_seconds() * 1000))
    if name.endswith(".kbytes"):
        return str(parse_size(text) // 1024)
    return str(parse_size(text)) if name.endswith(".bytes") else text


def _is_service_link(variable: str, value: str) -> bool:
    if _SERVICE_LINK_NAME.match(variable):
        return True
    return variable.endswith("_PORT") and _SERVICE_LINK_VALUE.match(value) is not None


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6) or difflib.get_close_matches(
        name.lower().replace("-", "_"), known, n=1, cutoff=0.6
    )
    hint = f"did you mean {near[0]}?" if near else "`stream-dedup config reference` lists those there are."
    return f"{what} is not a setting; {hint}"


def _sentences(error: ValidationError, origins: Mapping[str, Origin]) -> Iterator[str]:
    for one in error.errors(include_url=False, include_input=True):
        if one["type"] == "default_factory_not_called":
            continue  # a default made from another value, which is itself reported
        name = str(one["loc"][0]) if one["loc"] else ""
        origin = origins.get(name, Origin("default"))
        where = origin.where or name
        must = _must(one["type"], one.get("ctx", {}), one["msg"], one["input"])
        given = one["input"]
        shown = repr(given if isinstance(given, str | int | float | list | dict) else as_text(given))
        yield f"{where} is {_cut(shown)}, but {must}."


def _must(kind: str, context: Mapping[str, Any], message: str, value: object) -> str:
    """Return what a value must be, as the end of a sentence, from pydantic's error."""
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        allowed = re.findall(r"'([^']*)'", str(context["expected"]))
        near = difflib.get_close_matches(str(value).lower(), allowed, n=1, cutoff=0.5)
        return f"must be {' or '.join(allowed)}" + (f" (did you mean {near[0]}?)" if near else "")
    limits = {
        "greater_than_equal": "must be at least {ge}",
        "less_than_equal": "must be at most {le}",
        "string_too_long": "must have at most {max_length} characters",
    }
    if kind in limits:
        return limits[kind].format(**{name: as_text(limit) for name, limit in context.items()})
    if kind.startswith("int_"):
        return "must be a whole number"
    if kind.startswith("bool_"):
        return "must be true or false"
    if kind.startswith("string_type"):
        return "must be a text"
    if kind.startswith("path_"):
        return "must name a file that exists" if kind == "path_not_file" else "must be a path"
    if kind == "string_pattern_mismatch":
        return f"must be {_PATTERNS[context['pattern']]}"
    return f"it cannot be used: {message}"


def _mistake(error: Exception) -> str:
    """Return what is wrong in a file and where, without the words that stand there: they may be a password."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f", at line {mark.line + 1}, column {mark.column + 1}"
        return _without_words(error.problem or error.context or "it is no YAML") + where
    if isinstance(error, yaml.YAMLError | tomllib.TOMLDecodeError):
        return _without_words(str(error))
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    return "a value of it cannot be what its tag (!!int, !!timestamp) says"


def _without_words(text: str) -> str:
    kept = _QUOTED.sub(lambda found: found[0] if _MARK.fullmatch(found[1] or "") else "", text)
    return " ".join(re.sub(r"\([\s,]*\)", "", kept).split())


def _name(text: str) -> str:
    """Return a name in a file as it may be shown: `password=secret` without its end, where a colon and a space were meant."""
    found = _SHOWN_NAME.match(text)
    shown = found[0] if found else ""
    return shown if shown == text else f"{shown}..."


def _why(error: Exception) -> str:
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)


def _cut(text: str, limit: int = 120) -> str:
    printable = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return printable if len(printable) <= limit else printable[: limit - 3] + "..."
