"""The settings as a frozen, validated object. `layers` reads it, `properties` defines the names of
environment variables.

Invariants: a `Settings` object is valid; every value has a `ValueOrigin`; a secret appears neither in
`repr`, nor in `shown()`, nor in an error.

`kafka` contains librdkafka properties. For the secret ones, and for `sasl.username`, a variable that
ends in `_FILE` names a file with the value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

import platformdirs
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationInfo,
    field_validator,
    model_validator,
)

from stream_dedup.domain.document import Mode
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import Plan, parse_similarity, plan_for
from stream_dedup.domain.plan import parse as parse_plan
from stream_dedup.domain.presets import DEFAULT
from stream_dedup.domain.presets import parse as parse_preset
from stream_dedup.domain.topics import NAMED, TopicNames, normalise_prefix
from stream_dedup.settings.properties import MASK, PREFIX, is_secret, without_login
from stream_dedup.settings.units import (
    HEADER_PREFIX,
    HOSTS,
    WEB_ADDRESS,
    Brokers,
    Duration,
    FieldPath,
    Folder,
    FolderOrUrl,
    Host,
    Name,
    ReadableFile,
    Size,
    TextLocation,
    TextPrefixes,
    TopicName,
    Whole,
    as_text,
    check_window,
    split_hosts,
    within,
)

_SHADOW_GROUP = "-shadow"
Source: TypeAlias = Literal["flag", "environment", "file", "preset", "default"]


@contextlib.contextmanager
def _as_value_error() -> Iterator[None]:
    """Convert a ConfigurationError to a ValueError, which pydantic collects. Its message is the end
    of a sentence.
    """
    try:
        yield
    except ConfigurationError as error:
        sentence = str(error).removesuffix(".")
        raise ValueError(sentence[:1].lower() + sentence[1:]) from error


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """The origin of a value: `source` is `flag`, `environment`, `file`, `preset` or `default`, and
    `where` is its name there.
    """

    source: Source
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.where}".strip()


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A row of `config show`: the value as text with secrets masked, and its origin."""

    name: str
    value: str
    origin: ValueOrigin

    def to_fields(self) -> dict[str, str]:
        """Return value and origin as an object of the command's JSON."""
        return {"value": self.value, "source": self.origin.source, "where": self.origin.where}


_SIMILARITIES = {
    "similarity_unsure": "unsure",
    "similarity_same_site": "same_site",
    "similarity_other_title": "other_title",
}


class Settings(BaseModel):
    """All settings. `load_settings` creates it from all sources; the constructor uses its arguments
    only.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        coerce_numbers_to_str=True,
        validate_default=False,
        hide_input_in_errors=True,
    )

    kafka_bootstrap_servers: Brokers = Field(
        default="localhost:9092",
        description="Bootstrap servers, as `host:port`, separated by commas. Without it "
        "`KAFKA_BOOTSTRAP_SERVERS` is used.",
    )
    kafka: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Any librdkafka property, for TLS, SASL and tuning: write `.` as `_`, `_` as "
        "`__` and `-` as `___`; in a file use the table `[kafka]`. Values can have "
        "units (`15s`, `64MB`). Properties that exactly-once depends on are refused.",
    )
    mode: Literal["enforce", "annotate", "shadow"] = Field(
        default="enforce",
        description="`enforce`: duplicates are written to `duplicates`. `annotate`: every document "
        "is written to `unique`, with its verdict in headers. `shadow`: no document is "
        "written; verdicts are in metrics and in a separate log, `shadow.fingerprints`.",
    )
    fail_open: (
        Annotated[Duration, within("1s", "1d", "at least 1 second and at most 1 day")] | None
    ) = Field(
        default=None,
        description="How long a document waits for its verdict before it is delivered as unique, "
        "with the reason `fail-open`. Without it documents wait.",
    )
    allow_bypass: bool = Field(
        default=False,
        description="Accept a producer's header `dedup.bypass: true`: the record is delivered as "
        "unique without being judged.",
    )
    topic_prefix: Annotated[str, AfterValidator(normalise_prefix)] = Field(
        default="",
        description="Prefix of every topic name, as in `crawl.documents`. Another prefix starts an "
        "empty filter.",
    )
    group: Name = Field(
        default_factory=lambda data: data["topic_prefix"] + "stream-dedup",
        validate_default=True,
        description="Name of the filter: consumer group and first part of transactional ids. "
        "Another group reads all documents again and needs another `fingerprints` "
        "topic. In shadow mode `-shadow` is added.",
        json_schema_extra={"default_text": "`stream-dedup` after the topic prefix"},
    )
    worker_id: Annotated[Name, Field(max_length=100)] | None = Field(
        default=None,
        description="Stable name of this worker, unique in the group. Without it a name is "
        "generated and kept in `state_dir`.",
    )
    documents: TopicName | None = Field(
        default=None,
        description="Name of the input topic. `topics apply` creates it if it is missing, and never"
        " changes it.",
        json_schema_extra={"default_text": "`documents` after the topic prefix"},
    )
    unique: TopicName | None = Field(
        default=None,
        description="Name of the output topic for unique documents.",
        json_schema_extra={"default_text": "`unique` after the topic prefix"},
    )
    duplicates: TopicName | None = Field(
        default=None,
        description="Name of the output topic for duplicate documents.",
        json_schema_extra={"default_text": "`duplicates` after the topic prefix"},
    )
    dead_letters: TopicName | None = Field(
        default=None,
        description="Name of the topic for records that cannot be judged.",
        json_schema_extra={"default_text": "`dlq.documents` after the topic prefix"},
    )
    input_preset: Literal["raw", "nutch", "scrapy-cluster", "ache"] = Field(
        default="raw",
        description="Defaults for a crawler's records. `nutch`: its JSON. `scrapy-cluster`: the "
        "page in `body` (if it sets KAFKA_BASE_64_ENCODE, set `text_encoding`). `ache`: the "
        "page in `content`, as base64. The last two need `crawl-dedup[html]`.",
    )
    value_format: Literal["raw", "json", "confluent-json", "avro"] = Field(
        default="raw",
        description="`raw`: the value is the text. `json`: the text is in `text_field`. "
        "`confluent-json`: the same after the five bytes of Confluent's serializers. "
        "`avro`: with the schema of `registry_url`. The last two need "
        "`crawl-dedup[registry]`.",
    )
    text_field: FieldPath = Field(
        default="text",
        description="Dotted path of the text in a JSON value; a list is joined. A document without "
        "it becomes a dead letter.",
    )
    text_at: TextLocation | None = Field(
        default=None,
        description="Field or header (`header:text-uri`) with the URL of the text (`https://`, "
        "`s3://`, `gs://`, `abfs://`, `file:///`). Needs `crawl-dedup[fetch]`, or the "
        "extra `s3`, `gs`, `abfs`.",
    )
    text_prefixes: TextPrefixes | None = Field(
        default=None,
        description="URLs below which texts may be fetched, separated by commas, as in "
        "`s3://crawl/pages,https://store.example/`.",
    )
    text_bytes: Annotated[Size, Field(ge=1 << 10, le=1 << 30)] = Field(
        default=10_000_000,
        description="Maximum size of a fetched text, before and after decompression; a larger one "
        "becomes a dead letter.",
        json_schema_extra={"default_text": "`10MB`"},
    )
    registry_url: str | None = Field(
        default=None,
        repr=False,
        description="URL of the schema registry for `avro`, optionally with `user:password@`; "
        "separate several with commas. `STREAM_DEDUP_REGISTRY_URL_FILE` names a file "
        "with it, `SSL_CERT_FILE` the certificate of a private CA.",
    )
    text_is: Literal["text", "html"] = Field(
        default="text",
        description="`html`: the text is a web page, and its main text is judged; needs "
        "`crawl-dedup[html]`. A page that takes more than two seconds of CPU becomes a "
        "dead letter.",
    )
    text_encoding: Literal["plain", "base64"] = Field(
        default="plain",
        description="`base64`: the text is base64 of UTF-8, or of a page in any encoding.",
    )
    id_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's id in a JSON value. Without a value the record's"
        " key is the id.",
    )
    time_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's time (RFC 3339, or milliseconds since 1970). "
        "Without it the record's timestamp is used.",
    )
    scope_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of a tenant: documents are compared only with those of the same "
        "tenant.",
    )
    site_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's web site: a host, a URL or any other name. "
        "Without a value the site is the host of the id, if that is an `http` or "
        "`https` URL.",
    )
    title_field: FieldPath = Field(
        default="title",
        description="Dotted path of the document's title. Without a value a web page has the title "
        "of its `title` element, else of its first `h1`.",
    )
    recipe: str = Field(
        default=DEFAULT,
        description="How a text becomes a fingerprint: `words`, `chars`, `shingles`, `keywords`, "
        "`textrank`, `pypi-simhash`, `vector`, or one of these with a width (`chars:64`); see `recipes.md`. A change "
        "needs a new `fingerprints` topic.",
    )
    floor: Annotated[int, Field(ge=1, lt=1 << 32)] | None = Field(
        default=None,
        description="Minimum number of distinct features of a text that is compared for "
        "similarity; shorter texts are only compared for equality. A change needs a new "
        "`fingerprints` topic.",
        json_schema_extra={"default_text": "the recipe's: 14 for `words`, about 8 English words"},
    )
    plan: str | None = Field(
        default=None,
        description="Which texts are copies: `bands`, `blocks`, `classic`, or numbers such as "
        "`128:8:0:19` (see `plans.md`). The first worker of an empty log sets it; later"
        " `stream-dedup declare` changes it.",
        json_schema_extra={
            "default_text": "`bands`; for recipes without sketches `blocks`, at 64 bits `classic`"
        },
    )
    similarity: str | None = Field(
        default=None,
        description="Minimum similarity of copies on different sites, or with one id: `0.7` drops "
        "fewer than the `0.62` of `bands` (see `stream-dedup calibrate`). Needs a plan with "
        "sketches. Set and changed like `plan`.",
        json_schema_extra={"default_text": "the plan's"},
    )
    similarity_unsure: str | None = Field(
        default=None,
        description=(
            "The same for pages of one site with equal titles, or if the site of one is unknown: "
            "`0.70` with `bands`."
        ),
        json_schema_extra={"default_text": "the plan's"},
    )
    similarity_same_site: str | None = Field(
        default=None,
        description="The same for pages of one site if the title of one is unknown: `0.85` with "
        "`bands`.",
        json_schema_extra={"default_text": "the plan's"},
    )
    similarity_other_title: str | None = Field(
        default=None,
        description="The same for pages of one site with different titles: `0.97` with `bands`.",
        json_schema_extra={"default_text": "the plan's"},
    )
    window: Annotated[str | None, BeforeValidator(check_window)] = Field(
        default=None,
        description="How long, by log time, a kept document stays in the index: `30d`. A later copy"
        " is unique again. `30d,refresh` counts from the last duplicate. Set and "
        "changed like `plan`.",
        json_schema_extra={"default_text": "none: forever"},
    )
    better: Literal["longest", "newest"] = Field(
        default="longest",
        description="When a copy is better than the kept document and all earlier copies "
        "(`dedup.better`): `longest`: it has a tenth more features; `newest`: its time is later. "
        "Set and changed like `plan`.",
    )
    count_copies: bool = Field(
        default=False,
        description="Write the number of copies so far to `dedup.copies`; costs the index about 5 % "
        "of its CPU. It cannot change later.",
    )
    key_file: ReadableFile | None = Field(
        default=None,
        description="File with the secret key of the fingerprints. Without it outsiders can craft "
        "documents that collide. A change needs a new `fingerprints` topic.",
    )
    log_ids: Literal["plain", "digest"] = Field(
        default="plain",
        description="`digest`: log, index and `dedup.of.id` contain a keyed digest instead of the "
        "id. It cannot change later.",
    )
    user_dictionary: ReadableFile | None = Field(
        default=None,
        description="Words for jieba, one per line: `word [frequency] [tag]`. Part of the recipe.",
    )
    stop_words: ReadableFile | None = Field(
        default=None,
        description=(
            "Words that fingerprints ignore, one per line; `#` starts a comment. Part of the recipe."
        ),
    )
    languages: Literal["same-han"] | None = Field(
        default=None,
        description="`same-han`: traditional Han is read as simplified, also for `exact`. Part of the "
        "recipe.",
    )
    batch_documents: Annotated[int, Whole] = Field(
        default=8000,
        ge=1,
        le=100_000,
        description="Maximum number of documents in one transaction; fewer if they are large.",
    )
    memory: Annotated[Size, Field(ge=384 << 20)] | None = Field(
        default=None,
        description="Memory limit of this role, such as `8GB`. A worker without it uses the limit "
        "of the pod or container, else a quarter of the machine, at most 1 GiB. An "
        "index keeps tables that exceed it in files in `state_dir`, which is slower, and exits if "
        "less than the minimum fits (with `bands` a third of the full size).",
        json_schema_extra={"default_text": "a worker: the pod's limit; an index: no limit"},
    )
    state_dir: Folder = Field(
        default_factory=lambda data: Path(platformdirs.user_state_dir(data["group"])),
        description="Folder for derived state, on a fast local disk: the worker's name in "
        "`workers`, the index in `index` (rebuilt from the log if lost), the search in "
        "`search` (you can delete it at any time).",
        json_schema_extra={"default_text": "a folder of the user's state, named after the group"},
    )
    http_host: Host = Field(
        default="127.0.0.1",
        description="Address of probes and metrics. A container needs `0.0.0.0` or `::`.",
    )
    http_port: Annotated[int, Whole] = Field(
        default=8080,
        ge=0,
        le=65535,
        description="Port of probes and metrics; 0 uses any free port and logs it. With `run all` "
        "the next three are those of index, insights and search.",
    )
    http_allowed_hosts: str = Field(
        default="",
        pattern=HOSTS,
        description=(
            "Additional host names of the console and API, separated by commas, such as a proxy's; "
            "`*.example.org` allows all below it, `*` any; `tools.example/dedup` also names a "
            "path that a proxy does not strip. Requests for other names are refused, so that pages of "
            "other sites cannot read the texts."
        ),
        json_schema_extra={"default_text": "none"},
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Minimum log level. `debug` also shows librdkafka's messages.",
    )
    snapshots: FolderOrUrl | None = Field(
        default=None,
        description=(
            "Where the index stores snapshots: `s3://bucket/folder`, `gs://`, `abfs://` (extras "
            "and credentials as for texts), or a folder on another disk. Replicas share it. An "
            "index with an empty folder starts from the newest."
        ),
    )
    search_keep: (
        Annotated[Duration, within("1m", "3660d", "at least 1 minute and at most 3660 days")] | None
    ) = Field(
        default=None,
        description="How long `run search` keeps a document, by its timestamp: `90d`.",
        json_schema_extra={"default_text": "all"},
    )
    console_token_file: Path | None = Field(
        default=None,
        description="File with the console's password (any user name), also accepted as "
        "`Authorization: Bearer`. Without it, everyone who can reach the port can read "
        "the texts.",
    )
    console_index: str | None = Field(
        default=None,
        pattern=WEB_ADDRESS,
        description="URL of the index, such as `http://index:8080`, whose plans the "
        "console uses to explain decisions.",
    )

    _origins: Mapping[str, ValueOrigin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_topics_differ(self) -> Self:
        names = self.topic_names
        all_names = names.all()
        for name, setting in ((name, names.setting_of(name)) for name in all_names):
            if setting is not None and all_names.count(name) > 1:
                raise ValueError(
                    f"{PREFIX}{setting.upper()} is {name!r}, which is the name of another topic of "
                    "this filter"
                )
        return self

    @field_validator("group")
    @classmethod
    def _keep_shadow_apart(cls, value: str, info: ValidationInfo) -> str:
        # If a shadow committed offsets for the delivering group, that group would skip documents
        # that it never delivered.
        is_shadow = info.data.get("mode") == "shadow" and not value.endswith(_SHADOW_GROUP)
        return value + _SHADOW_GROUP if is_shadow else value

    @field_validator("recipe")
    @classmethod
    def _check_recipe(cls, value: str) -> str:
        with _as_value_error():
            parse_preset(value)
        return " ".join(value.lower().split())

    @field_validator("plan")
    @classmethod
    def _check_plan(cls, value: str | None) -> str | None:
        if value is None:
            return None
        with _as_value_error():
            parse_plan(value)
        return value.strip().lower()

    @field_validator("similarity", *_SIMILARITIES)
    @classmethod
    def _check_similarity(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is None:
            return None
        with _as_value_error():
            similarity = parse_similarity(value)
            if info.data.get("plan") is not None:
                parse_plan(info.data["plan"]).with_similarity(similarity)
        return f"{similarity / 100:.2f}"

    @field_validator(
        *("text_field", "text_at", "id_field", "time_field"),
        *("scope_field", "site_field", "title_field"),
    )
    @classmethod
    def _check_needs_json(cls, value: str | None, info: ValidationInfo) -> str | None:
        is_field = value is not None and not value.startswith(HEADER_PREFIX)
        if is_field and info.data.get("value_format") == "raw":
            raise ValueError(f"needs {PREFIX}VALUE_FORMAT=json, because a raw value has no fields")
        return value

    @model_validator(mode="after")
    def _check_text_at_has_prefixes(self) -> Self:
        if self.text_at is not None and self.text_prefixes is None:
            raise ValueError(
                f"{PREFIX}TEXT_AT is {self.text_at}, but no address is allowed: set the allowed "
                f"ones, as in {PREFIX}TEXT_PREFIXES=s3://crawl/pages"
            )
        return self

    @property
    def console_prefix(self) -> str:
        """The path prefix of the console behind a proxy, or ""."""
        paths = (path for _, path in split_hosts(self.http_allowed_hosts))
        return next((f"/{path}" for path in paths if path), "")

    @property
    def index_dir(self) -> Path:
        """The index's folder, used by one process."""
        return self.state_dir / "index"

    @property
    def search_dir(self) -> Path:
        """The folder of the full-text engine, used by one process."""
        return self.state_dir / "search"

    @property
    def judging_mode(self) -> Mode:
        """The mode as stored in log batches."""
        return Mode[self.mode.upper()]

    @property
    def _default_plan(self) -> Plan:
        """The recipe's default plan."""
        method = parse_preset(self.recipe)
        return plan_for(method.width, has_sketches=method.cuts_words)

    @property
    def judging_plan(self) -> Plan:
        """The plan of the settings, or the recipe's default plan, with the similarities of the
        settings.
        """
        plan = self._default_plan if self.plan is None else parse_plan(self.plan)
        similarities = self.similarities.items()
        return plan.with_similarity(
            **{name: parse_similarity(text) for name, text in similarities if text is not None}
        )

    @property
    def similarities(self) -> dict[str, str | None]:
        """The similarities of the settings by a plan's field names; None if not set."""
        return {"similarity": self.similarity} | {
            field: getattr(self, name) for name, field in _SIMILARITIES.items()
        }

    @property
    def topic_names(self) -> TopicNames:
        """The names of the filter's topics."""
        names = {
            kind: name
            for kind, field in NAMED.items()
            if (name := getattr(self, field)) is not None
        }
        return TopicNames(self.topic_prefix, is_shadow=self.mode == "shadow", names_by_kind=names)

    @property
    def origins(self) -> Mapping[str, ValueOrigin]:
        """The origin of each value by field name; Kafka properties are `kafka.<property>`."""
        return self._origins

    def origin(self, name: str) -> ValueOrigin:
        """Return the origin of the value of `name`."""
        return self._origins.get(name, ValueOrigin("default"))

    def shown(self) -> Iterator[ShownSetting]:
        """Yield every setting as text with secrets masked, and each Kafka property."""
        for name in type(self).model_fields:
            value = getattr(self, name)
            if name == "kafka":
                for prop, text in sorted(self.kafka.items()):
                    key = f"kafka.{prop}"
                    yield ShownSetting(key, MASK if is_secret(prop) else text, self.origin(key))
            else:
                shown = as_text(value) if name != "registry_url" else without_login(as_text(value))
                yield ShownSetting(name, shown, self.origin(name))
