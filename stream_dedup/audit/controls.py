"""Parse control records: a second implementation that checks each field without the index
(docs/reference/control-records.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from stream_dedup.audit.copies import RULES
from stream_dedup.audit.scan import LIMB_BITS, Reach
from stream_dedup.domain.document import ID_BYTES_MAX, TOPIC_ID_BYTES, Mode
from stream_dedup.domain.errors import FormatError
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.log.records import FORMATS

Partition = tuple[str, bytes, int]
"""Topic, topic id, partition."""
DAY_MS: Final = 86_400_000
OFFSET_MAX: Final = (1 << 63) - 1
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1


class FoldedWindow(NamedTuple):
    """How long a representative is compared with new documents, in log time."""

    length_ms: int
    refresh: bool


class FoldedDeclaration(NamedTuple):
    """The fields of the log's first record on which verdicts depend."""

    recipe: str
    floor: int
    delivers: bool
    width: int | None
    fields: Mapping[str, object]
    format: int


def parse_declaration(
    fields: Mapping[str, object],
) -> tuple[FoldedDeclaration, Reach, FoldedWindow | None, str]:
    """Parse a `declare` record into the declaration, its plan, its window and its rule for the best
    copy.

    Raises:
        FormatError: a field is missing or invalid.
    """
    plan = Reach.from_fields(fields.get("plan"))
    width = None
    if "width" in fields:
        width = _number_field(fields, "width", 256)
        if width % LIMB_BITS or width < plan.width:
            raise FormatError(f"A recipe's width cannot be {width}.")
    if (
        plan.needs_sketch
        and "sketch_bytes" in fields
        and _number_field(fields, "sketch_bytes", SKETCH_BYTES) != SKETCH_BYTES
    ):
        raise FormatError("The plan compares sketches, and the recipe makes none.")
    mode = Mode(_number_field(fields, "mode", len(Mode) - 1)) if "mode" in fields else Mode.ENFORCE
    window = None if fields.get("window") is None else parse_window(fields["window"])
    _printable_field(fields, "group")
    if not isinstance(fields.get("count_copies", False), bool):
        raise FormatError("The field count_copies is neither true nor false.")
    recipe, floor, form = (
        _printable_field(fields, "recipe"),
        _number_field(fields, "floor", _U32_MAX),
        parse_format(fields, min(FORMATS)),
    )
    declaration = FoldedDeclaration(recipe, floor, mode.delivers, width, fields, form)
    return declaration, plan, window, parse_better_rule(fields) if "better" in fields else "longest"


def parse_retraction(fields: Mapping[str, object]) -> list[tuple[Partition, int, int]]:
    """Return the (partition, offset, value digest) of each position that a `retract` record names.

    Raises:
        FormatError: it names no position, or an invalid one.
    """
    try:
        topic_id = bytes.fromhex(_text_field(fields, "topic_id"))
    except ValueError as error:
        raise FormatError("A topic id is written in hexadecimal digits.") from error
    if len(topic_id) != TOPIC_ID_BYTES:
        raise FormatError(f"A topic id has {TOPIC_ID_BYTES} bytes.")
    topic, names = _text_field(fields, "topic"), ("partition", "offset", "value_digest")
    positions = fields.get("positions")
    if not isinstance(positions, list) or not 0 < len(positions) <= 1000:
        raise FormatError("A retract record names 1 to 1000 positions.")
    named_positions = []
    for position in positions:
        if not isinstance(position, list) or len(position) != 3:
            raise FormatError("A position is a partition, an offset and a digest of the value.")
        partition, offset, value_digest = (
            _bounded(value, name, highest)
            for value, name, highest in zip(
                position, names, (_U32_MAX, OFFSET_MAX, _U64_MAX), strict=True
            )
        )
        named_positions.append(((topic, topic_id, partition), offset, value_digest))
    return named_positions


def parse_forgotten_ids(fields: Mapping[str, object]) -> set[bytes]:
    """Return the ids that a `forget` record names.

    Raises:
        FormatError: it names no id, or an invalid one.
    """
    texts = fields.get("ids")
    if not isinstance(texts, list) or not 0 < len(texts) <= 1000:
        raise FormatError("A forget record names 1 to 1000 ids.")
    try:
        ids = {bytes.fromhex(text) for text in texts}
    except (ValueError, TypeError) as error:
        raise FormatError("A forget record names ids in hexadecimal digits.") from error
    if b"" in ids or max(map(len, ids)) > ID_BYTES_MAX:
        raise FormatError("A forget record names ids that no document can have.")
    return ids


def parse_window(fields: object) -> FoldedWindow:
    """Return the window that a control record contains.

    Raises:
        FormatError: the fields are not those of a window.
    """
    if not isinstance(fields, Mapping) or set(fields) != {"length_ms", "refresh"}:
        raise FormatError(f"These are not the fields of a window: {fields!r:.200}.")
    length, refresh = fields["length_ms"], fields["refresh"]
    if (
        isinstance(length, bool)
        or not isinstance(length, int)
        or not 1000 <= length <= 366_000 * DAY_MS
    ):
        raise FormatError(f"A window is not {length!r:.40} ms long.")
    if not isinstance(refresh, bool):
        raise FormatError(f"A window's refresh is not {refresh!r:.40}.")
    return FoldedWindow(length, refresh)


def parse_format(fields: Mapping[str, object], lowest: int) -> int:
    """Return the log format that a control record names, or `lowest` if it names none.

    Raises:
        FormatError: this version does not know the format, or it is below `lowest`.
    """
    form = fields.get("format", lowest)
    if isinstance(form, bool) or not isinstance(form, int) or form not in FORMATS or form < lowest:
        raise FormatError(f"The format {form!r:.40} cannot be in force.")
    return form


def parse_better_rule(fields: Mapping[str, object]) -> str:
    """Return the rule for the best copy that a control record names.

    Raises:
        FormatError: there is no rule of that name.
    """
    name = _text_field(fields, "better")
    if name not in RULES:
        raise FormatError(f"There is no rule {name!r:.60} for the best copy.")
    return name


def _text_field(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise FormatError(f"The field {name} is not a text.")
    return value


def _printable_field(fields: Mapping[str, object], name: str) -> str:
    value = _text_field(fields, name)
    if not 0 < len(value.encode("utf-8", "surrogatepass")) <= 255 or not value.isprintable():
        raise FormatError(f"The field {name} is not a printable name.")
    return value


def _number_field(fields: Mapping[str, object], name: str, highest: int) -> int:
    return _bounded(fields.get(name), name, highest)


def _bounded(value: object, name: str, highest: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise FormatError(f"The field {name} is not a whole number up to {highest}.")
    return value
