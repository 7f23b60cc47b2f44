"""Records on `fingerprints`, the log: packed batches of documents, and control records.

    record  := frame "SDLG", format 1, kind 1 (batch), 2 (control), 3 (seed) or 4 (release)
    batch   := recipe(str8) mode(u8) print_limbs(u8) sketch_bytes(u8) nonce(16) number(u64)
               sources(u16) source* documents(u32) column*
    source  := topic(str8) topic_id(16) partition(u32) epoch(u64) committed(u64)
    columns := source(u16) offset(i64) value_digest(u64) text_digest(16) print(u64 x print_limbs, low limb first)
               sketch(sketch_bytes) features(u32) scope(u64) site(u64) title(u64) time_ms(i64)
               id_bytes(u16), each for all documents; then the ids, concatenated
    control := UTF-8 JSON object with sorted keys; `type` names it
    seed    := batch, of documents that were delivered elsewhere; epoch and committed are 0
    release := unique_from(u64) batch, of the one document that is released; epoch and committed are 0

`value_digest` is XXH3-64 of the raw value; `site` and `title` are keyed hashes of the names, 0 for
none. The index answers batches only; docs/reference/control-records.md describes the effect of the
other kinds. The grammar above is that of format 1; `FORMATS` contains the reader and writer of each
format ever released (docs/reference/compatibility.md). A batch is written in the format in force, a
control record in the lowest format that supports it.

Worked example: tests/golden/formats/1/records.json contains a record of each kind as hex.

Invariants: a batch has at most `DOCUMENTS_MAX` documents and encodes to at most `RECORD_BYTES_MAX`
bytes; documents of one partition are in offset order. A batch contains, for each source partition,
the (epoch, committed offset) that its worker read from the broker or committed successfully, never
one of an unconfirmed commit. `sketch_bytes` is 120, or 0 if the recipe makes no sketches. The bytes
are a function of the fields and the format alone. A kind, a control type or a field that its format
does not define was written by a newer program; it stops the role like a newer format, because otherwise
replicas of two versions would diverge.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import xxhash
from numpy.typing import NDArray

from stream_dedup.domain.document import (
    DIGEST_BYTES,
    ID_BYTES_MAX,
    NONCE_BYTES,
    TOPIC_ID_BYTES,
    Mode,
    Position,
)
from stream_dedup.domain.errors import UPGRADE, FormatError, OtherFormatError
from stream_dedup.domain.lazy_sequences import Ids
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.log.record_frame import FIRST_FORMAT, Reader, framed, unframed

MAGIC = b"SDLG"
KIND_BATCH = 1
KIND_CONTROL = 2
KIND_SEED = 3
KIND_RELEASE = 4
DOCUMENTS_MAX = 1000
RECORD_BYTES_MAX = 300_000
_FORGOTTEN_MAX = 1000

_SKETCHES = (0, SKETCH_BYTES)

_U8 = struct.Struct("<B")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_BATCH = struct.Struct(f"<BBB{NONCE_BYTES}sQH")
_SOURCE = struct.Struct(f"<{TOPIC_ID_BYTES}sIQQ")
_FIXED_BYTES = 2 + 8 + 8 + DIGEST_BYTES + 4 + 8 + 8 + 8 + 8 + 2


@dataclass(frozen=True, slots=True)
class Source:
    """A source partition of a batch, with its epoch and committed offset."""

    topic: str
    topic_id: bytes
    partition: int
    epoch: int
    committed: int


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Documents of one worker, in columns; row i of every column is document i.

    Shapes: `source` (n,) uint16, an index into `sources`; `offset` (n,) int64; `value_digest` (n,)
    uint64 of the raw value; `text_digest` (n, 16) uint8, keyed, of the normalised text; `prints`
    (n, width / 64) uint64, low limb first; `sketches` (n, 120) uint8, or (n, 0) if the recipe makes
    none; `features` (n,) uint32; `scope` (n,) uint64, 0 for the one common scope; `site` and
    `title` (n,) uint64, keyed hashes, 0 for none; `time_ms` (n,) int64, the record's time; `ids` n
    byte strings of at most 512 bytes; in a decoded batch they are `Ids`.
    """

    recipe: str
    mode: Mode
    nonce: bytes
    number: int
    sources: tuple[Source, ...]
    source: NDArray[np.uint16]
    offset: NDArray[np.int64]
    value_digest: NDArray[np.uint64]
    text_digest: NDArray[np.uint8]
    prints: NDArray[np.uint64]
    sketches: NDArray[np.uint8]
    features: NDArray[np.uint32]
    scope: NDArray[np.uint64]
    site: NDArray[np.uint64]
    title: NDArray[np.uint64]
    time_ms: NDArray[np.int64]
    ids: Sequence[bytes]

    def __len__(self) -> int:
        return len(self.offset)

    def position(self, place: int) -> Position:
        """Return the source position of the document at `place`."""
        source = self.sources[int(self.source[place])]
        return Position(source.topic, source.topic_id, source.partition, int(self.offset[place]))


@dataclass(frozen=True, slots=True)
class Control:
    """An order of an operator or a worker, by its `type`; it gets no answer. `RecordFormat.orders`
    lists types and fields.
    """

    type: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Seed:
    """Documents that were delivered elsewhere and become representatives; it gets no answer."""

    batch: Batch


@dataclass(frozen=True, slots=True)
class Release:
    """A dropped document that is delivered to `unique` later; it gets no answer.

    `batch` contains that document alone, as it was judged. `unique_from` is the end offset that its
    partition of `unique` had before this record was appended. A command that is repeated searches for
    the document from this offset.
    """

    batch: Batch
    unique_from: int


@lru_cache(maxsize=2 * DOCUMENTS_MAX)
def _columns_of(count: int, limbs: int, sketch_bytes: int) -> np.dtype[Any]:
    """Return the layout of the columns of `count` documents."""
    columns: list[tuple[str, str, tuple[int, ...]]] = [
        ("source", "<u2", (count,)),
        ("offset", "<i8", (count,)),
        ("value_digest", "<u8", (count,)),
        ("text_digest", "u1", (count, DIGEST_BYTES)),
        ("prints", "<u8", (count, limbs)),
        ("sketches", "u1", (count, sketch_bytes)),
        ("features", "<u4", (count,)),
        ("scope", "<u8", (count,)),
        ("site", "<u8", (count,)),
        ("title", "<u8", (count,)),
        ("time_ms", "<i8", (count,)),
        ("id_bytes", "<u2", (count,)),
    ]
    return np.dtype(columns)


# The columns that `Batch` has under the same name: all but `id_bytes`.
_COLUMNS: Final = (_columns_of(1, 1, 0).names or ())[:-1]

LogRecord: TypeAlias = Batch | Control | Seed | Release


def document_of(batch: Batch, place: int) -> Batch:
    """Return the document at `place` as a batch, with epoch and committed offset 0."""
    source = batch.sources[int(batch.source[place])]
    rows = slice(place, place + 1)
    columns: dict[str, Any] = {name: getattr(batch, name)[rows] for name in _COLUMNS}
    return replace(
        batch,
        sources=(Source(source.topic, source.topic_id, source.partition, 0, 0),),
        ids=batch.ids[rows],
        **(columns | {"source": np.zeros(1, np.uint16)}),
    )


def value_digest(value: bytes | None) -> int:
    """Return XXH3-64 of a raw value, which distinguishes a redelivery from another document at the
    same position.

    It needs no key: an attacker cannot write two values to one offset of one topic.
    """
    return xxhash.xxh3_64_intdigest(value or b"")


def encode_batch(batch: Batch, form: int = FIRST_FORMAT) -> bytes:
    """Return the bytes of one batch record of the format `form`.

    Raises:
        FormatError: the batch breaks a limit of the format.
    """
    return _framed(form, KIND_BATCH, FORMATS[form].batch_body(batch))


def encode_seed(batch: Batch, form: int = FIRST_FORMAT) -> bytes:
    """Return the bytes of one seed record with these documents, of the format `form`.

    Raises:
        FormatError: the batch breaks a limit of the format.
    """
    return _framed(form, KIND_SEED, FORMATS[form].batch_body(batch))


def encode_release(release: Release, form: int = FIRST_FORMAT) -> bytes:
    """Return the bytes of one release record of the format `form`.

    Raises:
        FormatError: its batch breaks a limit of the format, or does not contain exactly one document.
    """
    if len(release.batch) != 1:
        raise FormatError(
            f"A release contains one document, but this one has {len(release.batch)}."
        )
    body = _U64.pack(release.unique_from) + FORMATS[form].batch_body(release.batch)
    return _framed(form, KIND_RELEASE, body)


def _batch_body(batch: Batch) -> bytes:
    """Return a batch in bytes: the part `batch` of the grammar in the module's docstring.

    Raises:
        FormatError: the batch breaks a limit of the format.
    """
    count, limbs, sketch_bytes = len(batch.ids), batch.prints.shape[1], batch.sketches.shape[1]
    if not 0 < count <= DOCUMENTS_MAX:
        raise FormatError(
            f"A log record contains 1 to {DOCUMENTS_MAX} documents, but this batch has {count}."
        )
    if batch.sketches.shape[0] != count or sketch_bytes not in _SKETCHES:
        raise FormatError(
            f"A batch of {count} documents must have {count} sketches of {SKETCH_BYTES} bytes, or "
            f"none, but this batch has {len(batch.sketches)} of {sketch_bytes} bytes."
        )
    ids = Ids.of(batch.ids)
    parts = [
        _str8(batch.recipe),
        _BATCH.pack(batch.mode, limbs, sketch_bytes, batch.nonce, batch.number, len(batch.sources)),
    ]
    for source in batch.sources:
        parts += (
            _str8(source.topic),
            _SOURCE.pack(source.topic_id, source.partition, source.epoch, source.committed),
        )
    parts.append(_U32.pack(count))
    layout = _columns_of(count, limbs, sketch_bytes)
    parts += [getattr(batch, name).astype(layout[name].base).tobytes() for name in _COLUMNS]
    parts += (ids.sizes.astype("<u2").tobytes(), ids.joined)
    return b"".join(parts)


def _framed(form: int, kind: int, body: bytes) -> bytes:
    raw = framed(MAGIC, form, kind, body)
    if len(raw) > RECORD_BYTES_MAX:
        raise FormatError(
            f"A log record contains at most {RECORD_BYTES_MAX} bytes, but this batch has {len(raw)}."
        )
    return raw


def encode_control(control: Control) -> bytes:
    """Return the bytes of one control record, of the first format that has its type and fields."""
    fields = {"type": control.type, **control.fields}
    body = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    suitable = (form for form in sorted(FORMATS) if not _unknown_part(control, FORMATS[form]))
    return framed(MAGIC, next(suitable, FIRST_FORMAT), KIND_CONTROL, body.encode("utf-8"))


def forgotten_ids(fields: Mapping[str, Any]) -> set[bytes]:
    """Return the ids of a `forget` record, as the log stores them; none if the record is invalid and
    so has no effect.
    """
    texts = fields.get("ids")
    if not isinstance(texts, list) or not 0 < len(texts) <= _FORGOTTEN_MAX:
        return set()
    try:
        ids = {bytes.fromhex(text) for text in texts}
    except (ValueError, TypeError):
        return set()
    return set() if b"" in ids or max(map(len, ids)) > ID_BYTES_MAX else ids


def decode(raw: bytes | None, record_name: str = "A record of the log") -> LogRecord:
    """Return the record in `raw`; `record_name` names it in errors.

    Raises:
        OtherFormatError: the record is intact, but its format, kind or a field is unknown; the role
        must stop.
        FormatError: not a record of stream_dedup, or damaged; the index answers `rejected` and
        continues.
    """
    form, kind, body = unframed(MAGIC, FORMATS, raw, record_name)
    record_format = FORMATS[form]
    decoder = record_format.decoders.get(kind)
    if decoder is None:
        raise OtherFormatError(
            f"{record_name} has the kind {kind}, which this version does not know: {UPGRADE}"
        )
    record = decoder(body, record_name)
    if isinstance(record, Control):
        if unknown := _unknown_part(record, record_format):
            raise OtherFormatError(
                f"{record_name} has {unknown}, which this version does not know: {UPGRADE}"
            )
        declared_format = record.fields.get("format")
        if isinstance(declared_format, int) and declared_format > max(FORMATS):
            raise OtherFormatError(
                f"{record_name} declares format {declared_format}, but this version writes up to "
                f"{max(FORMATS)}: {UPGRADE}"
            )
    return record


def _unknown_part(control: Control, record_format: RecordFormat) -> str:
    """Return the first part of an order that a format does not define, as text; "" if there is
    none.
    """
    fields = record_format.orders.get(control.type)
    if fields is None:
        return f"an order {control.type!r:.60}"
    for name in sorted(control.fields.keys() - fields):
        return f"a field {name!r:.60} in an order {control.type}"
    for name, inner in record_format.parts.items():
        part = control.fields.get(name)
        for inner_name in sorted(part.keys() - inner) if isinstance(part, dict) else ():
            return f"a field {inner_name!r:.60} in the {name} of an order {control.type}"
    return ""


def split_sizes(
    id_sizes: Sequence[int],
    width_bits: int,
    sketch_bytes: int,
    sources: int,
    name_bytes: int = 600,
    documents_max: int = DOCUMENTS_MAX,
) -> Iterator[int]:
    """Split a batch: yield the number of documents of each log record, so that none exceeds a limit.

    `id_sizes` are the sizes of the documents' ids in bytes. `width_bits` is the size of one of the
    recipe's fingerprints, `sketch_bytes` that of a sketch. A record names at most `sources` source
    partitions.
    """
    fixed = _FIXED_BYTES + width_bits // 8 + sketch_bytes
    bytes_max = RECORD_BYTES_MAX - name_bytes - sources * (300 + _SOURCE.size)
    count = used = 0
    for size in id_sizes:
        if count == documents_max or used + fixed + size > bytes_max:
            yield count
            count = used = 0
        count += 1
        used += fixed + size
    if count:
        yield count


def _decode_batch(reader: Reader, record_name: str) -> Batch:
    recipe = reader.text(_U8)
    mode, limbs, sketch_bytes, nonce, number, source_count = reader.unpack(_BATCH)
    sources = [Source(reader.text(_U8), *reader.unpack(_SOURCE)) for _ in range(source_count)]
    (count,) = reader.unpack(_U32)
    if not 0 < count <= DOCUMENTS_MAX:
        raise FormatError(f"{record_name} has {count} documents; 1 to {DOCUMENTS_MAX} are allowed.")
    if not 1 <= limbs <= 4 or mode not in Mode.__members__.values():
        raise FormatError(
            f"{record_name} has fingerprints of {limbs} x 64 bits and mode {mode}, which do not "
            "exist."
        )
    if sketch_bytes not in _SKETCHES:
        raise FormatError(
            f"{record_name} has sketches of {sketch_bytes} bytes; only {SKETCH_BYTES} or 0 are "
            "allowed."
        )
    columns = reader.columns(_columns_of(count, limbs, sketch_bytes))
    source, sizes = columns["source"], columns["id_bytes"]
    # `argmax`, because `max` takes five times as long for short columns.
    if not sources or int(source[source.argmax()]) >= len(sources):
        raise FormatError(f"{record_name} refers to a source partition that it does not list.")
    if int(sizes[sizes.argmax()]) > ID_BYTES_MAX:
        raise FormatError(f"{record_name} contains an id of more than {ID_BYTES_MAX} bytes.")
    stops = np.cumsum(sizes, dtype=np.int64)
    ids = Ids(bytes(reader.take(int(stops[-1]))), stops)
    reader.end()
    return Batch(
        recipe,
        Mode(mode),
        nonce,
        number,
        tuple(sources),
        ids=ids,
        **{name: columns[name] for name in _COLUMNS},
    )


def _decode_release(reader: Reader, record_name: str) -> Release:
    (unique_from,) = reader.unpack(_U64)
    batch = _decode_batch(reader, record_name)
    if len(batch) != 1:
        raise FormatError(f"{record_name} releases {len(batch)} documents; a release contains one.")
    return Release(batch, unique_from)


def _decode_control(body: memoryview, record_name: str) -> Control:
    try:
        fields = json.loads(bytes(body).decode("utf-8"))
        kind = fields.pop("type")
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise FormatError(
            f"{record_name} is a control record whose fields are not valid JSON."
        ) from error
    if not isinstance(kind, str):
        raise FormatError(f"{record_name} is a control record whose type is not a text.")
    return Control(kind, fields)


def _str8(text: str) -> bytes:
    raw = text.encode("utf-8")
    if len(raw) > 255:
        raise FormatError(
            f"The name {text[:40]!r}... has {len(raw)} bytes; a log record contains names of at most "
            "255."
        )
    return _U8.pack(len(raw)) + raw


class RecordFormat(NamedTuple):
    """The decoders and encoders of one format. Once released they never change: a change is another
    format.

    `orders` lists the fields of each type of control record, and `parts` those of nested objects. The
    types `begun`, `opened` and `reading` are records of the topic `begun`.
    """

    decoders: Mapping[int, Callable[[memoryview, str], LogRecord]]
    batch_body: Callable[[Batch], bytes]
    orders: Mapping[str, frozenset[str]]
    parts: Mapping[str, frozenset[str]]


_ORDERS_1: Final = {
    "declare": "recipe plan group floor mode better width window sketch_bytes count_copies log_ids format",
    "plan": "plan window better format",
    "retract": "topic topic_id positions",
    "forget": "ids",
    "begun": "log topic topic_id partitions",
    "opened": "log",
    "reading": "log settings changes",
}
_PARTS_1: Final = {
    "plan": "width blocks radius threshold key_blocks by_length ratio bands similarity asked unsure same_site other_title",
    "window": "length_ms refresh",
}
FORMATS: Final[dict[int, RecordFormat]] = {
    1: RecordFormat(
        {
            KIND_BATCH: lambda body, record_name: _decode_batch(
                Reader(body, record_name), record_name
            ),
            KIND_CONTROL: _decode_control,
            KIND_SEED: lambda body, record_name: Seed(
                _decode_batch(Reader(body, record_name), record_name)
            ),
            KIND_RELEASE: lambda body, record_name: _decode_release(
                Reader(body, record_name), record_name
            ),
        },
        _batch_body,
        {name: frozenset(fields.split()) for name, fields in _ORDERS_1.items()},
        {name: frozenset(fields.split()) for name, fields in _PARTS_1.items()},
    ),
}
"""The released formats by number; the highest is the newest that this program writes."""
