"""Stored bytes: keys, values and their version. There is one column family; the key's first byte is
its type.

    key                     value
    !                       magic "SDX1" version(u16)
    L                       the log that this volume follows, as its role names it
    R                       empty: the volume was restored from a snapshot, and has not yet announced its first answer
    m                       meta: applied(u64) answered(u64) chain(8) entries(u64) live(u64) rejected(u64)
                            rejected_at(u64) ignored(u64) print_limbs(u8) sketch_bytes(u8)
    d                       JSON object with sorted keys: the declaration, and the plan and window in force
    s number(u32)           source partition: topic(str8) topic_id(16) partition(u32)
    k source(u32)           its watermark: epoch(u64) committed(u64)
    e page(u64)             up to 64 entries, 64 * page being the first: count(u16) rows ids; the rows are stored column by
                            column, in the order of the fields of `row`: half the size when
                            compressed
    v log_offset(u64)       the cached verdicts of one log record: count(u16) kept* ids
    t                       log time in ms(i64)
    g                       the generations of entries: (first entry(u64), log time at which it ends, in ms(i64))*
    a log_offset(u64)       an answer, as sent, until its delivery is confirmed
    c entry(u64)            the best copy of a representative, and the number of copies: `copies`
    b entry(u64)            the id of the best copy; missing if that is the representative itself, or has no id
    l entry(u64)            the digest(16) of the last text of an id, under the id's latest representative; missing if
                            that has the same text: `last_texts`
    F                       table files: format(u16) base(u64): an entry's number is `base` plus the number in its row;
                            missing while none are valid. See `table_files`
    f group(u64)            table files: the digest of each column of 4,096 rows(u64 x columns)
    o table(u64)            table files: one table: plan(u64) generation(u64) rows(u64) entries(u64) buckets(u64) digest(u64)
    x group(u64)            table files: which of 4,096 rows are removed, a bit for each(u8 x 512, the highest bit first);
                            missing if none is

    row     := state(u8) text_digest(16) print(u64 x print_limbs, low limb first) sketch(u8 x sketch_bytes) site(u64)
               title(u64) scope(u64)
               features(u32) source(u32) offset(i64) value_digest(u64) time_ms(i64) log_offset(u64)
               place(u16) append_ms(i64) ids_end(u16): the end of the entry's id in the
               page's ids; it begins at the end of the id before
    kept    := source(u32) offset(i64) value_digest(u64) reason(u8) distance(u8) similarity(u8) copies(u32) better(u8)
               decided_offset(u64) decided_place(u32) representative(u64: its handle, 65536 * log
               offset + place of the verdict that made it one), then the representative that a
               duplicate names (otherwise zeros): of_source(u32) of_offset(i64) of_time_ms(i64)
               id_bytes(u16)
    state   := 0 removed (all of the row but `ids_end` is 0), 1 compared by text digest only (too few features), 2 compared
               by text digest and similarity

Numbers in keys are big-endian, so that a scan returns them in order; in values little-endian. A
page of entries is written again when entries are added (to the last page) or one of its entries is
removed. Of the other values, `m`, `k`, `t`, `g`, `v`, `c`, `b`, `l` and those of table files are
written again; the rest is written once. A page is deleted once all its entries are removed.

Invariants: the bytes depend on the fields alone; a volume of another version is distinguished from
a damaged one. Frozen in tests/golden/volumes (`python -m tests.index.golden`); a change of any byte
is a new version, whose volume is built next to the old one (`place`).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.document import NO_TOPIC_ID, TOPIC_ID_BYTES
from stream_dedup.domain.errors import FormatError, OtherFormatError
from stream_dedup.log.answers import CHAIN_START
from stream_dedup.log.schema import COLUMNS

VERSION: Final = 9
PAGE_ENTRIES: Final = 64

KEY_FORMAT: Final = b"!"
KEY_LOG: Final = b"L"
KEY_RESTORED: Final = b"R"
KEY_META: Final = b"m"
KEY_DECLARED: Final = b"d"
PREFIX_SOURCE: Final = b"s"
PREFIX_WATERMARK: Final = b"k"
PREFIX_PAGE: Final = b"e"
PREFIX_CACHED: Final = b"v"
PREFIX_ANSWER: Final = b"a"
PREFIX_COPIES: Final = b"c"
PREFIX_BEST_ID: Final = b"b"
PREFIX_LAST_TEXT: Final = b"l"
KEY_TABLE_FILES: Final = b"F"
PREFIX_FILE_ROWS: Final = b"f"
PREFIX_FILE_TABLE: Final = b"o"
PREFIX_REMOVED: Final = b"x"

_FORMAT: Final = struct.Struct("<4sH")
_MAGIC: Final = b"SDX1"
_META: Final = struct.Struct("<QQ8sQQQQQBB")
_WATERMARK: Final = struct.Struct("<QQ")
_COUNT: Final = struct.Struct("<H")
ROWS_BEGIN: Final = _COUNT.size
"""The position of the rows in a page's value; the ids follow them."""
DAMAGED_PAGE: Final = (
    "A page of the index volume is damaged. Start the index with an empty volume; it is rebuilt "
    "from the log."
)
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")

CACHED_VERDICT: Final = np.dtype(
    [
        ("source", "<u4"), ("offset", "<i8"), ("value_digest", "<u8"),
        *((column.name, column.stored) for column in COLUMNS), ("representative", "<u8"),
        ("of_source", "<u4"), ("of_offset", "<i8"), ("of_time_ms", "<i8"), ("id_bytes", "<u2"),
    ]
)  # fmt: skip
COPIES: Final = np.dtype(
    [
        ("copies", "<u4"), ("features", "<u4"), ("time_ms", "<i8"),
        ("rule", "u1"), ("source", "<u4"), ("offset", "<i8"),
    ]
)  # fmt: skip
"""The value under `PREFIX_COPIES`; `index.rules.copies` describes the fields."""


@lru_cache
def row_type(limbs: int, sketch_bytes: int = 0) -> np.dtype[Any]:
    """Return the type of an entry's row: a print of `limbs` limbs, a sketch of `sketch_bytes` bytes."""
    return np.dtype(
        [
            ("state", "u1"), ("text_digest", "u1", (16,)), ("print", "<u8", (limbs,)), ("sketch", "u1", (sketch_bytes,)),
            ("site", "<u8"), ("title", "<u8"), ("scope", "<u8"), ("features", "<u4"),
            ("source", "<u4"), ("offset", "<i8"), ("value_digest", "<u8"),
            ("time_ms", "<i8"), ("log_offset", "<u8"), ("place", "<u2"), ("append_ms", "<i8"),
            ("ids_end", "<u2"),
        ]
    )  # fmt: skip


def row_fields(*names: str) -> np.dtype[Any]:
    """Return the type of some fields of an entry, which must have the same size for all recipes."""
    return np.dtype([(name, row_type(0)[name]) for name in names])


@lru_cache
def loaded_type(limbs: int, sketch_bytes: int = 0) -> np.dtype[Any]:
    """Return the type of the fields of an entry from which the tables in memory are built."""
    names = (
        *("state", "text_digest", "print", "sketch", "site", "title", "scope", "features"),
        *("source", "offset", "value_digest"),
    )
    return np.dtype([(name, row_type(limbs, sketch_bytes)[name]) for name in names])


class Meta(NamedTuple):
    """The state of a volume, written with every step.

    `applied` is the next log offset to read; answers below `answered` were delivered; `entries` is
    the number of all entries so far, `live` that of live ones; `rejected` and `ignored` count log
    records, and `rejected_at` is the log offset of the last rejected one; `print_limbs` is 0 until
    the first batch was judged; `sketch_bytes` is 0 if the recipe makes no sketches.
    """

    applied: int = 0
    answered: int = 0
    chain: bytes = CHAIN_START
    entries: int = 0
    live: int = 0
    rejected: int = 0
    rejected_at: int = 0
    ignored: int = 0
    print_limbs: int = 0
    sketch_bytes: int = 0


def encode_format() -> bytes:
    """Return the value that contains this layout's version."""
    return _FORMAT.pack(_MAGIC, VERSION)


def version_of(value: bytes) -> int | None:
    """Return the layout's version in such a value; None if no index wrote it."""
    if len(value) != _FORMAT.size or not value.startswith(_MAGIC):
        return None
    return int(_FORMAT.unpack(value)[1])


def check_format(value: bytes) -> None:
    """Check that an index wrote a volume, and that it has this layout.

    Raises:
        OtherFormatError: a version of this program with another layout wrote it.
        FormatError: another program wrote it.
    """
    version = version_of(value)
    if version is None:
        raise FormatError(
            "The volume was not written by stream_dedup. Start the index with an empty directory."
        )
    if version != VERSION:
        raise OtherFormatError(
            f"The index volume has the format {version}, but this version reads {VERSION}. Open "
            "it with the version that wrote it; or start the index with an empty volume, and it "
            "is rebuilt from the log with the same verdicts."
        )


def _key(number_type: struct.Struct, prefix: bytes, number: int) -> bytes:
    return prefix + number_type.pack(number)


source_key: Final = partial(_key, _U32, PREFIX_SOURCE)
watermark_key: Final = partial(_key, _U32, PREFIX_WATERMARK)
page_key: Final = partial(_key, _U64, PREFIX_PAGE)
cached_key: Final = partial(_key, _U64, PREFIX_CACHED)
copies_key: Final = partial(_key, _U64, PREFIX_COPIES)
best_id_key: Final = partial(_key, _U64, PREFIX_BEST_ID)
last_text_key: Final = partial(_key, _U64, PREFIX_LAST_TEXT)
file_rows_key: Final = partial(_key, _U64, PREFIX_FILE_ROWS)
file_table_key: Final = partial(_key, _U64, PREFIX_FILE_TABLE)
removed_key: Final = partial(_key, _U64, PREFIX_REMOVED)
answer_key: Final = partial(_key, _U64, PREFIX_ANSWER)


def number_of(key: bytes) -> int:
    """Return the number in a key of any prefix."""
    return int.from_bytes(key[1:], "big")


def encode_meta(meta: Meta) -> bytes:
    """Return the bytes of a volume's meta value."""
    return _META.pack(*meta)


def decode_meta(value: bytes) -> Meta:
    """Return the meta value in `value`.

    Raises:
        FormatError: it is damaged.
    """
    if len(value) != _META.size:
        raise FormatError(
            "The index volume's meta value is damaged. Start the index with an empty volume; it "
            "is rebuilt from the log."
        )
    return Meta(*_META.unpack(value))


def encode_object(fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object's bytes."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("ascii")


def decode_object(value: bytes) -> dict[str, Any]:
    """Return the JSON object in `value`.

    Raises:
        FormatError: it is damaged.
    """
    try:
        fields = json.loads(value)
    except ValueError as error:
        raise FormatError(
            "A value of the index volume is not valid JSON. Start the index with an empty "
            "volume; it is rebuilt from the log."
        ) from error
    if not isinstance(fields, dict):
        raise FormatError(
            "A value of the index volume is not a JSON object. Start the index "
            "with an empty volume; it is rebuilt from the log."
        )
    return fields


def encode_source(topic: str, topic_id: bytes, partition: int) -> bytes:
    """Return the bytes of a source partition's name."""
    name = topic.encode("utf-8")
    return bytes((len(name),)) + name + topic_id + struct.pack("<I", partition)


def decode_source(value: bytes) -> tuple[str, bytes, int]:
    """Return (topic, topic id, partition).

    Raises:
        FormatError: it is damaged.
    """
    end = 1 + value[0] if value else 0
    if len(value) != end + len(NO_TOPIC_ID) + 4:
        raise FormatError(
            "A source partition's name in the index volume is damaged. Start the "
            "index with an empty volume; it is rebuilt from the log."
        )
    (partition,) = struct.unpack_from("<I", value, end + TOPIC_ID_BYTES)
    return value[1:end].decode("utf-8"), value[end : end + TOPIC_ID_BYTES], partition


def encode_watermark(epoch: int, committed: int) -> bytes:
    """Return the bytes of a watermark."""
    return _WATERMARK.pack(epoch, committed)


def decode_watermark(value: bytes) -> tuple[int, int]:
    """Return (epoch, committed).

    Raises:
        FormatError: it is damaged.
    """
    if len(value) != _WATERMARK.size:
        raise FormatError(
            "A watermark in the index volume is damaged. Start the index with an "
            "empty volume; it is rebuilt from the log."
        )
    epoch, committed = _WATERMARK.unpack(value)
    return epoch, committed


def encode_parts(rows: NDArray[Any], parts: int) -> list[bytes]:
    """Return the bytes of each of `parts` equal parts of structured rows (n,), column by column."""
    columns = [np.ascontiguousarray(rows[name]).view(np.uint8) for name in rows.dtype.names or ()]
    size = len(rows) // max(1, parts)
    parts_by_column = [
        column.reshape(parts, size * column.size // max(1, len(rows))) for column in columns
    ]
    return [part.tobytes() for part in np.concatenate(parts_by_column, axis=1)]


def view_columns(raw: bytes, count: int, dtype: np.dtype[Any]) -> dict[str, NDArray[Any]]:
    """Return the columns in `raw`, of count * dtype.itemsize bytes, by name and without a copy."""
    columns: dict[str, NDArray[Any]] = {}
    position = 0
    for name, (field_dtype, *_) in (dtype.fields or {}).items():
        size = count * field_dtype.itemsize
        columns[name] = np.frombuffer(
            raw, field_dtype.base, size // field_dtype.base.itemsize, position
        ).reshape(count, *field_dtype.shape)
        position += size
    return columns


def decode_columns(raw: bytes, count: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the structured rows (count,) in such bytes."""
    rows = np.empty(count, dtype)
    for name, column in view_columns(raw, count, dtype).items():
        rows[name] = column
    return rows


def encode_rows(rows: bytes, count: int, ids: bytes) -> bytes:
    """Return the value of a page of entries, or of cached verdicts: count, rows, ids."""
    return b"".join((_COUNT.pack(count), rows, ids))


def count_rows(value: bytes) -> int:
    """Return the number of rows of such a value; 0 for a damaged one."""
    return int(_COUNT.unpack_from(value)[0]) if len(value) >= ROWS_BEGIN else 0


def split_rows(value: bytes, row_bytes: int) -> tuple[int, bytes, bytes]:
    """Return (count, rows, ids) of such a value.

    Raises:
        FormatError: it is damaged.
    """
    count = count_rows(value)
    end = ROWS_BEGIN + count * row_bytes
    if count == 0 or len(value) < end:
        raise FormatError(DAMAGED_PAGE)
    return count, value[ROWS_BEGIN:end], value[end:]


def encode_cached(rows: NDArray[Any], ids: bytes) -> bytes:
    """Return the value of one log record's cached verdicts: `rows` (n,) CACHED_VERDICT, and the joined
    ids of the representatives that they name.
    """
    return encode_rows(rows.tobytes(), len(rows), ids)


def decode_cached(value: bytes) -> tuple[NDArray[Any], bytes]:
    """Return (rows (n,) CACHED_VERDICT, their joined ids).

    Raises:
        FormatError: it is damaged.
    """
    _, raw, ids = split_rows(value, CACHED_VERDICT.itemsize)
    rows: NDArray[Any] = np.frombuffer(raw, CACHED_VERDICT)
    if int(rows["id_bytes"].sum(dtype=np.int64)) != len(ids):
        raise FormatError(
            "Cached verdicts of the index volume are damaged. Start the index with "
            "an empty volume; it is rebuilt from the log."
        )
    return rows, ids
