"""One frozen settings object, checked as a whole. Where it is read from: `layers`; how names are
written: `environment`.

Invariants: a `Settings` that exists is valid; every value knows its `ValueOrigin`; a secret appears
neither in `repr`, nor in `shown()`, nor in an error.

`kafka` holds librdkafka properties. For the secret ones, and for `sasl.username`, a variable that
ends in `_FILE` names a file which holds the value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
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

from stream_dedup.ground.document import Mode
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.ground.plan import PLANS, Plan, parse_similarity, plan_for
from stream_dedup.ground.plan import parse as parse_plan
from stream_dedup.ground.topics import NAMED, TopicNames, normalise_prefix
from stream_dedup.settings.properties import MASK, PREFIX, is_secret
from stream_dedup.settings.units import (
    HEADER_PLACE,
    HOSTS,
    WEB_ADDRESS,
    WEB_PATH,
    Brokers,
    Duration,
    FieldPath,
    Folder,
    Host,
    Name,
    Place,
    ReadableFile,
    Size,
    TextPlace,
    TextPrefixes,
    TopicName,
    Whole,
    as_text,
    parse_window,
    within,
)

_DEFAULT_RECIPE = "words"
_SHADOW_GROUP = "-shadow"
Source: TypeAlias = Literal["flag", "environment", "file", "preset", "default"]


@contextlib.contextmanager
def _as_value_error() -> Iterator[None]:
    """Let pydantic collect what is wrong with a value, as the end of its sentence."""
    try:
        yield
    except ConfigurationError as error:
        sentence = str(error).removesuffix(".")
        raise ValueError(sentence[:1].lower() + sentence[1:]) from error


@dataclass(frozen=True, slots=True)
class ValueOrigin:
    """Where a value came from: `source` is `flag`, `environment`, `file`, `preset` or `default`;
    `where` is its name there.
    """

    source: Source
    where: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.where}".strip()


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """One row of `config show`: the value as text with secrets masked, and where it came from."""

    name: str
    value: str
    origin: ValueOrigin


_SIMILARITIES = {
    "similarity_unsure": "unsure",
    "similarity_same_site": "same_site",
    "similarity_other_title": "other_title",
}


class Settings(BaseModel):
    """Everything that can be set. Made by `load_settings`; built directly, it takes only what it is
    given.
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
        description="First brokers to ask, as `host:port`, separated by commas. "
        "`KAFKA_BOOTSTRAP_SERVERS` is honoured too, "
        "below the prefixed name.",
    )
    kafka: dict[str, str] = Field(
        default_factory=dict,
        repr=False,
        description="Any librdkafka property, for TLS, SASL and tuning: `.` is written `_`, `_` is "
        "`__` and `-` is `___`; "
        "in a file it stands in the table `[kafka]`. Values of `*.ms` and `*.bytes` may be written "
        "`15s`, "
        "`64MB`; properties on which exactly-once rests are refused.",
    )
    mode: Literal["enforce", "annotate", "shadow"] = Field(
        default="enforce",
        description="`enforce`: duplicates leave on `duplicates`. `annotate`: every document "
        "leaves on `unique`, with its "
        "verdict on the headers. `shadow`: nothing leaves; verdicts show in metrics and on a log "
        "of its own, "
        "`shadow.fingerprints`.",
    )
    fail_open: (
        Annotated[Duration, within("1s", "1d", "at least 1 second and at most 1 day")] | None
    ) = Field(
        default=None,
        description="How long a document waits for its verdict before it leaves as unique, with "
        "the reason `fail-open`. "
        "Without it documents wait.",
    )
    allow_bypass: bool = Field(
        default=False,
        description="Honour a producer's header `dedup.bypass: true`: the record leaves as unique "
        "without being judged.",
    )
    first_start: bool = Field(
        default=False,
        description="Confirms that a partition without a committed offset is read from its "
        "beginning though it was begun "
        "before: Kafka drops offsets after seven idle days. Without it the worker ends there with "
        "code 78. "
        "Set it for one start only.",
    )
    trace: bool = Field(
        default=False,
        description="Outputs say on `dedup.trace` when each passed which step, to find what a "
        "document waits for.",
    )
    topic_prefix: Annotated[str, AfterValidator(normalise_prefix)] = Field(
        default="",
        description="Put before every topic name (`crawl` gives `crawl.documents`). Changing it "
        "later starts an empty filter "
        "beside the old one.",
    )
    group: Name = Field(
        default_factory=lambda data: data["topic_prefix"] + "stream-dedup",
        validate_default=True,
        description="The filter's name: consumer group, first part of transactional ids, name of "
        "the state folder. Another "
        "group reads all documents again and needs a `fingerprints` topic of its own. In shadow "
        "mode `-shadow` is "
        "added.",
        json_schema_extra={"default_text": "`stream-dedup` behind the topic prefix"},
    )
    worker_id: Annotated[Name, Field(max_length=100)] | None = Field(
        default=None,
        description="Stable name of this worker, unique in the group; without one it is made of "
        "the host name and kept in "
        "`state_dir`. Two workers with one name fence each other off; one that changes at each "
        "start leaves "
        "readers of `unique` waiting for a time-out.",
    )
    documents: TopicName | None = Field(
        default=None,
        description="Whole name of the topic that is read. `topics apply` creates it where it is "
        "missing and never changes it;"
        " `doctor` says whether it fits.",
        json_schema_extra={"default_text": "`documents` behind the topic prefix"},
    )
    unique: TopicName | None = Field(
        default=None,
        description="Whole name of the topic for unique documents; taken as `documents` is.",
        json_schema_extra={"default_text": "`unique` behind the topic prefix"},
    )
    duplicates: TopicName | None = Field(
        default=None,
        description="Whole name of the topic for duplicates; taken as `documents` is.",
        json_schema_extra={"default_text": "`duplicates` behind the topic prefix"},
    )
    dead_letters: TopicName | None = Field(
        default=None,
        description="Whole name of the topic for what cannot be judged; taken as `documents` is.",
        json_schema_extra={"default_text": "`dlq.documents` behind the topic prefix"},
    )
    input_preset: Literal["raw", "nutch", "scrapy-cluster", "ache"] = Field(
        default="raw",
        description="Defaults for a crawler's own records; explicit settings win. `nutch`: its "
        "JSON, every field an "
        "array. `scrapy-cluster`: the page in `body` (with KAFKA_BASE_64_ENCODE set "
        "`text_encoding`). `ache`: "
        "the page in `content`, as base64. The last two need `crawl-dedup[html]`.",
    )
    value_format: Literal["raw", "json", "confluent-json", "avro"] = Field(
        default="raw",
        description="`raw`: the record's value is the text. `json`: the text stands at "
        "`text_field`. `confluent-json`: the "
        "same behind the five bytes of Confluent's serializers. `avro`: behind those "
        "bytes, read by "
        "the schema that `registry_url` has; both need `crawl-dedup[registry]`.",
    )
    text_field: FieldPath = Field(
        default="text",
        description="Dotted path of the text in a JSON value; a list there is joined. A document "
        "without it becomes a "
        "dead letter. Not with `value_format` `raw`.",
    )
    text_at: TextPlace | None = Field(
        default=None,
        description="Where a record names the address of its text (`https://`, `s3://`, `gs://`, "
        "`abfs://`, `file:///`): a "
        "field's dotted path, or a header, as in `header:text-uri`. Needs `crawl-dedup[fetch]`, or "
        "the extra `s3`,"
        " `gs`, `abfs`.",
    )
    text_prefixes: TextPrefixes | None = Field(
        default=None,
        description="What may be fetched: addresses below one of these, separated by commas, as in "
        "`s3://crawl/pages,https://store.example/`.",
    )
    text_bytes: Annotated[Size, Field(ge=1 << 10, le=1 << 30)] = Field(
        default=10_000_000,
        description="Most bytes of a text that is fetched, also unpacked; a larger one becomes a "
        "dead letter. The same "
        "for all workers of a group.",
        json_schema_extra={"default_text": "`10MB`"},
    )
    text_timeout: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=10),
        description="Time for one attempt to fetch a text; three are made.",
    )
    text_patience: Duration = Field(
        default=timedelta(minutes=10),
        ge=timedelta(seconds=1),
        le=timedelta(days=7),
        description="How long a text may be away while its store answers for others; then its "
        "record becomes a dead letter, "
        "`GivenUp`.",
    )
    text_fetches: Annotated[int, Whole] = Field(
        default=64,
        ge=1,
        le=1000,
        description="Most texts that one worker fetches at once.",
    )
    registry_url: str | None = Field(
        default=None,
        description="Address of the schema registry for `avro`, several with commas.",
    )
    registry_credentials_file: Path | None = Field(
        default=None,
        description="File with `user:password` for the schema registry's basic authentication.",
    )
    registry_ca_file: Path | None = Field(
        default=None,
        description="PEM file of the authority that signed the schema registry's certificate.",
    )
    reader_schema: int | None = Field(
        default=None,
        ge=1,
        description="Id of the schema by which every value in Avro is read, so that a "
        "renamed field has one name.",
    )
    text_is: Literal["text", "html"] = Field(
        default="text",
        description="`html`: the text is a web page, and its main text is judged; needs "
        "`crawl-dedup[html]`. A page that "
        "breaks the extractor, or takes more CPU than `page_cpu`, becomes a dead letter.",
    )
    page_cpu: Duration = Field(
        default=timedelta(seconds=2),
        ge=timedelta(milliseconds=100),
        le=timedelta(minutes=1),
        description="Most CPU for one page with `text_is` `html`; a page of 1 MB takes some 50 ms. "
        "The same for all "
        "workers of a group.",
    )
    text_encoding: Literal["plain", "base64"] = Field(
        default="plain",
        description="`base64`: the text is base64 of UTF-8 (of a page in any encoding, with "
        "`text_is` `html`).",
    )
    id_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's id in a JSON value; without it, or where a value "
        "has none or an empty one, the record's key is the id.",
    )
    time_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's time (RFC 3339, or milliseconds since 1970) in "
        "a JSON value; without it the"
        " record's timestamp is used.",
    )
    scope_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of a site or tenant in a JSON value: documents are judged only "
        "against those with the "
        "same value.",
    )
    site_field: FieldPath | None = Field(
        default=None,
        description="Dotted path of the document's web site in a JSON value: a host, an address or "
        "any other name. Without it, or where a value has none, the site is the host of the id, if "
        "the id is an `http` or `https` address.",
    )
    title_field: FieldPath = Field(
        default="title",
        description="Dotted path of the document's title in a JSON value. Where a value has none, "
        "a page with `text_is` `html` has the title of its `title` element, else of its first "
        "`h1`.",
    )
    recipe: str = Field(
        default=_DEFAULT_RECIPE,
        description="How a text becomes a fingerprint: `words`, `chars`, `shingles`, `keywords`, "
        "`textrank`, `vector`, "
        "one of these with a width (`chars:64`), or five stages (see `recipes.md`). A change needs "
        "a new "
        "`fingerprints` topic; fewer than 128 bits need a plan of that width, such as `classic` "
        "for 64.",
    )
    floor: Annotated[int, Field(ge=0, lt=1 << 32)] | None = Field(
        default=None,
        description="Fewest distinct features (words, pairs of words) of a text that is compared "
        "for nearness; shorter texts are only compared for equality (see `recipes.md`). Part of "
        "the recipe: a change needs a new `fingerprints` topic.",
        json_schema_extra={
            "default_text": "the recipe's own: 14 for `words`, what 8 English words have"
        },
    )
    plan: str | None = Field(
        default=None,
        description="Which texts count as near. `bands`: by sketch and print, at a cost that does "
        "not grow. `blocks`: without "
        "sketches, 128 bits in 8 blocks, within 17, lengths within 75 %. `classic`: the textbook's "
        "64 bits in 4 "
        "blocks, within 3. Or numbers, as in `128:8:0:19` (see `plans.md`). The first worker of an "
        "empty log takes"
        " it; later `stream-dedup declare` changes it.",
        json_schema_extra={
            "default_text": "`bands`; for recipes without sketches `blocks`, at 64 bits `classic`"
        },
    )
    similarity: str | None = Field(
        default=None,
        description="From which similarity on two texts of different sites, or of one id, are near, "
        "in hundredths: `0.7` drops less than the `0.62` of `bands`; `stream-dedup calibrate` shows "
        "what. Only with a plan that compares sketches. Taken and changed like `plan`. The next "
        "three are at least this much.",
        json_schema_extra={"default_text": "the plan's own"},
    )
    similarity_unsure: str | None = Field(
        default=None,
        description="The same for pages of one site with one title, and where the site of one is "
        "unknown: `0.70` of `bands`.",
        json_schema_extra={"default_text": "the plan's own"},
    )
    similarity_same_site: str | None = Field(
        default=None,
        description="The same for pages of one site where the title of one is unknown: `0.85` of "
        "`bands`.",
        json_schema_extra={"default_text": "the plan's own"},
    )
    similarity_other_title: str | None = Field(
        default=None,
        description="The same for pages of one site with different titles: `0.97` of `bands`.",
        json_schema_extra={"default_text": "the plan's own"},
    )
    window: Annotated[timedelta | None, BeforeValidator(parse_window)] = Field(
        default=None,
        description="How long, by the log's time, a kept document is compared with: `30d`. Older "
        "ones leave the index, and a "
        "later copy is unique again. Taken and changed like `plan`.",
        json_schema_extra={"default_text": "none, for ever"},
    )
    window_refresh: bool = Field(
        default=False,
        description="Count the window from the last duplicate: what is seen again and again stays "
        "a duplicate, and is written "
        "anew once in a sixteenth of the window. Taken and changed like `plan`.",
    )
    better: Literal["longest", "newest"] = Field(
        default="longest",
        description="Which copy beats the kept document and every copy before, as `dedup.better` "
        "says: `longest` has a tenth "
        "more features, `newest` a later time. Taken and changed like `plan`.",
    )
    count_copies: bool = Field(
        default=False,
        description="Say on each duplicate how many copies there are with it, as `dedup.copies`; "
        "costs the index some 5 % of "
        "its CPU. It cannot change later.",
    )
    key_file: ReadableFile | None = Field(
        default=None,
        description="File with the secret key of the feature hash, without which outsiders can "
        "craft documents that collide. "
        "It is part of the recipe: losing or changing it needs a new `fingerprints` topic.",
    )
    log_ids: Literal["plain", "digest"] = Field(
        default="plain",
        description="`digest`: log, index and `dedup.of.id` name documents by a digest under the "
        "recipe's key, so that no "
        "address enters the log. It cannot change later.",
    )
    user_dictionary: ReadableFile | None = Field(
        default=None,
        description="Words for jieba's cut of Han: a UTF-8 file with a line `word [frequency] "
        "[tag]` each. Part of the recipe:"
        " a change needs a new `fingerprints` topic.",
    )
    stop_words: ReadableFile | None = Field(
        default=None,
        description="Words that do not count: a UTF-8 file with a word a line, in any script; `#` "
        "begins a comment. Part "
        "of the recipe, as `user_dictionary` is.",
    )
    segmenter: Literal["pairs", "icu"] = Field(
        default="pairs",
        description="Where words are in scripts without spaces. `pairs`: every two neighbouring "
        "characters. `icu`: ICU's "
        "dictionaries for Japanese, Thai, Lao, Khmer and Burmese, at a fifth of the speed; needs "
        "`crawl-dedup[segment]`. Part of the recipe.",
    )
    han_variants: Literal["distinct", "same"] = Field(
        default="distinct",
        description="`same`: traditional Han is read as simplified, also for `exact`. Part of the "
        "recipe.",
    )
    batch_documents: Annotated[int, Whole] = Field(
        default=8000,
        ge=1,
        le=100_000,
        description="Most documents in one transaction; fewer of large ones, as `worker_memory` "
        "allows. A lone document leaves"
        " at once.",
    )
    batches_in_flight: Annotated[int, Whole] = Field(
        default=4,
        ge=1,
        le=64,
        description="Most batches that wait for the index at once.",
    )
    worker_memory: Annotated[Size, Field(ge=384 << 20)] | None = Field(
        default=None,
        description="Most memory that a worker may take, such as `1GiB`. Without it, the limit of "
        "the pod or container; "
        "without that, a quarter of the machine, at most 1 GiB.",
        json_schema_extra={"default_text": "the pod's limit"},
    )
    index_memory: Annotated[Size, Field(ge=512 << 20)] | None = Field(
        default=None,
        description="Most memory that the index may take, such as `8GB`; without it, what its "
        "entries need. The rest lies "
        "in files in `index_dir`, which makes looking up slower; when what must be in memory does "
        "not fit (with `bands` a "
        "third), the index stops and says so.",
    )
    state_dir: Folder = Field(
        default_factory=lambda data: Path(platformdirs.user_state_dir(data["group"])),
        description="Folder for what a role keeps between starts, such as the worker's name. "
        "Small.",
        json_schema_extra={
            "default_text": "a folder named after the group, where the user's state lies"
        },
    )
    index_dir: Folder = Field(
        default_factory=lambda data: data["state_dir"] / "index",
        description="Folder of the index's RocksDB, on a fast local disk, for one process. Losing "
        "it costs a rebuild from "
        "the log.",
        json_schema_extra={"default_text": "`index` in `state_dir`"},
    )
    search_dir: Folder = Field(
        default_factory=lambda data: data["state_dir"] / "search",
        description="Folder of the engine of `run search`, for one process. It may be deleted at "
        "any time.",
        json_schema_extra={"default_text": "`search` in `state_dir`"},
    )
    http_host: Host = Field(
        default="127.0.0.1",
        description="Address of probes and metrics. A container needs `0.0.0.0` or `::`.",
    )
    http_port: Annotated[int, Whole] = Field(
        default=8080,
        ge=0,
        le=65535,
        description="Port of probes and metrics; 0 takes any free port and logs it. `run all` "
        "gives the index the next "
        "one, insights the one after, a search the third.",
    )
    http_allowed_hosts: str = Field(
        default="",
        pattern=HOSTS,
        description="Further names under which pages and API may be asked for, separated by "
        "commas, such as a proxy's; "
        "`*.example.org` stands for all below it, `*` for any. Others are refused, so that no page "
        "of another site"
        " reads them; probes and metrics answer under any name.",
        json_schema_extra={"default_text": "none"},
    )
    livez_after: Duration = Field(
        default=timedelta(minutes=1),
        ge=timedelta(seconds=1),
        le=timedelta(days=1),
        description="`/livez` fails when the role's loop has not turned for this long. Lag never "
        "fails it.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info",
        description="Least level that is logged. `debug` also shows librdkafka's own.",
    )
    log_format: Literal["auto", "console", "json"] = Field(
        default="auto",
        description="`json`: one object a line, for collectors; `console`: for people; `auto`: "
        "console on a terminal, "
        "else JSON.",
    )
    snapshots: Place | None = Field(
        default=None,
        description="Where the index keeps copies of its volume, and begins with the newest when "
        "its own folder is empty: "
        "`s3://bucket/folder`, `gs://`, `abfs://` (extras and credentials as for texts), or a "
        "folder on another disk. Replicas "
        "share it.",
    )
    snapshots_every: Duration = Field(
        default=timedelta(days=1),
        ge=timedelta(seconds=10),
        le=timedelta(days=30),
        description="How old the newest snapshot may become before another is taken.",
    )
    snapshots_kept: Annotated[int, Whole] = Field(
        default=2,
        ge=1,
        le=1000,
        description="How many snapshots of a log stay; older ones are removed.",
    )
    search_texts: Literal["kafka", "engine"] = Field(
        default="kafka",
        description="Where snippets come from. `kafka`: read by position, as long as the topics "
        "keep them. `engine`: kept "
        "in `search_dir`, which doubles it. A change needs an empty folder.",
    )
    search_keep: (
        Annotated[Duration, within("1m", "3660d", "at least 1 minute and at most 3660 days")] | None
    ) = Field(
        default=None,
        description="How old a document may be, by its record's timestamp, before `run search` "
        "drops it: `90d`.",
        json_schema_extra={"default_text": "none, for ever"},
    )
    search_bytes: Annotated[Size, Field(ge=1_000_000)] | None = Field(
        default=None,
        description="Most of `search_dir` that documents may take, such as `20GB`, before the "
        "oldest are dropped. The "
        "engine frees space late: give the volume two and a half times as much.",
        json_schema_extra={"default_text": "none, without bound"},
    )
    console_token_file: Path | None = Field(
        default=None,
        description="File with the console's password (any user name), also taken as "
        "`Authorization: Bearer`. Without it, "
        "everyone who reaches the port reads the texts.",
    )
    console_prefix: str = Field(
        default="",
        pattern=WEB_PATH,
        description="Path under which a proxy that does not cut it off asks for the console, such "
        "as `/dedup`.",
    )
    console_index: str | None = Field(
        default=None,
        pattern=WEB_ADDRESS,
        description="Where the index answers, such as `http://index:8080`, for the console's page "
        "about it.",
    )
    insights_host_header: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Header of a record that names its host, as a name or a URL. Without it the "
        "host is that of the "
        "document's id, if this is an absolute URL.",
    )
    insights_window: Duration = Field(
        default=timedelta(hours=24),
        ge=timedelta(minutes=1),
        le=timedelta(days=366),
        description="How far back a host's signals reach from its latest document. Changing it "
        "empties the windows.",
    )
    insights_interval: Duration = Field(
        default=timedelta(seconds=10),
        ge=timedelta(seconds=1),
        le=timedelta(hours=1),
        description="How often `run insights` writes the signals of hosts that sent something.",
    )
    insights_hosts: Annotated[int, Whole] = Field(
        default=20_000,
        ge=1,
        le=5_000_000,
        description="Most hosts that are remembered, at up to 10 kB each.",
    )

    _origins: Mapping[str, ValueOrigin] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _check_topics_differ(self) -> Self:
        names = self.topic_names
        every = names.all()
        for name, setting in ((one, names.setting_of(one)) for one in every):
            if setting is not None and every.count(name) > 1:
                raise ValueError(
                    f"{PREFIX}{setting.upper()} is {name!r}, which is the name of another topic of "
                    "this filter"
                )
        return self

    @field_validator("group")
    @classmethod
    def _keep_shadow_apart(cls, value: str, info: ValidationInfo) -> str:
        # A shadow that committed for the group that delivers would make it skip what it never
        # delivered.
        is_shadow = info.data.get("mode") == "shadow" and not value.endswith(_SHADOW_GROUP)
        return value + _SHADOW_GROUP if is_shadow else value

    @field_validator("recipe")
    @classmethod
    def _check_recipe(cls, value: str) -> str:
        wanted = " ".join(value.lower().split())
        if wanted != _DEFAULT_RECIPE:
            from stream_dedup.fingerprinting.grammar import parse as parse_recipe  # noqa: PLC0415 - it takes a second

            with _as_value_error():
                parse_recipe(wanted)
        return wanted

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
        "text_field", "id_field", "time_field", "scope_field", "site_field", "title_field"
    )
    @classmethod
    def _check_needs_json(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("value_format") == "raw":
            raise ValueError(f"needs {PREFIX}VALUE_FORMAT=json, because a raw value has no fields")
        return value

    @field_validator("text_at")
    @classmethod
    def _check_has_fields(cls, value: str | None, info: ValidationInfo) -> str | None:
        if (
            value is not None
            and not value.startswith(HEADER_PLACE)
            and info.data.get("value_format") == "raw"
        ):
            raise ValueError(
                f"needs {PREFIX}VALUE_FORMAT=json, or names a header as in header:text-uri: a raw "
                "value has no fields"
            )
        return value

    @model_validator(mode="after")
    def _check_text_at_has_prefixes(self) -> Self:
        if self.text_at is not None and self.text_prefixes is None:
            raise ValueError(
                f"{PREFIX}TEXT_AT is {self.text_at!r}, and nothing may be fetched: name what may "
                "be, as in "
                f"{PREFIX}TEXT_PREFIXES=s3://crawl/pages"
            )
        return self

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
    def _usual_plan(self) -> Plan:
        """The plan for the recipe, where none is named."""
        if self.recipe == _DEFAULT_RECIPE:
            return PLANS["bands"]
        from stream_dedup.fingerprinting.grammar import parse as parse_recipe  # noqa: PLC0415 - it takes a second

        method = parse_recipe(self.recipe)
        return plan_for(method.width, has_sketches=method.makes_sketches)

    @property
    def judging_plan(self) -> Plan:
        """The plan that the settings name, or else the one for their recipe, with their similarities
        in place of its own.
        """
        plan = self._usual_plan if self.plan is None else parse_plan(self.plan)
        given = self.similarities.items()
        return plan.with_similarity(
            **{name: parse_similarity(text) for name, text in given if text is not None}
        )

    @property
    def similarities(self) -> dict[str, str | None]:
        """The similarities that are set, by what a plan calls them."""
        return {"similarity": self.similarity} | {
            field: getattr(self, name) for name, field in _SIMILARITIES.items()
        }

    @property
    def topic_names(self) -> TopicNames:
        """The names of the topics that these settings speak of."""
        given = {
            kind: name
            for kind, field in NAMED.items()
            if (name := getattr(self, field)) is not None
        }
        return TopicNames(self.topic_prefix, is_shadow=self.mode == "shadow", given=given)

    @property
    def origins(self) -> Mapping[str, ValueOrigin]:
        """Where each value came from, by field name; a Kafka property is called
        `kafka.<property>`.
        """
        return self._origins

    def origin(self, name: str) -> ValueOrigin:
        """Return where the value of `name` came from."""
        return self._origins.get(name, ValueOrigin("default"))

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
