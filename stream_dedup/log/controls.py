"""The fields of orders (control records), and their valid values (docs/reference/control-records.md).

`index.rules` and `audit.judgements` apply orders, independently of each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.better_copy import BetterRule
from stream_dedup.domain.document import TOPIC_ID_BYTES, Mode
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import WIDTH_MAX, Plan
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.log.record_frame import FIRST_FORMAT
from stream_dedup.log.records import DOCUMENTS_MAX, FORMATS

LENGTH_MS_MIN: Final = 1000
LENGTH_MS_MAX: Final = 1000 * 366 * 86_400_000
OFFSET_MAX: Final = (1 << 63) - 1
_U32_MAX: Final = (1 << 32) - 1
_U64_MAX: Final = (1 << 64) - 1
_NAME_BYTES_MAX: Final = 255

Partition = tuple[str, bytes, int]
"""Topic, topic id, partition."""


@dataclass(frozen=True, slots=True)
class Window:
    """How long a representative stays in the index: `length_ms` of log time, counted from its own
    record or, with `refresh`, from the last duplicate that named it.

    Raises:
        ConfigurationError: the length is not a whole number of milliseconds from a second to a thousand
            years.
    """

    length_ms: int
    refresh: bool = False

    def __post_init__(self) -> None:
        length = self.length_ms
        if (
            isinstance(length, bool)
            or not isinstance(length, int)
            or not LENGTH_MS_MIN <= length <= LENGTH_MS_MAX
        ):
            raise ConfigurationError(
                f"A window must be from one second to a thousand years long, not {length!r:.40} ms."
            )
        if not isinstance(self.refresh, bool):
            raise ConfigurationError(
                f"A window's refresh must be true or false, not {self.refresh!r:.40}."
            )

    def to_fields(self) -> dict[str, Any]:
        """Return the window as the JSON object in control records."""
        return {"length_ms": self.length_ms, "refresh": self.refresh}

    @classmethod
    def from_fields(cls, fields: object) -> Window:
        """Return the window of such a JSON object.

        Raises:
            ConfigurationError: it is not an object with exactly these two fields, or they are invalid.
        """
        if not isinstance(fields, Mapping) or set(fields) != {"length_ms", "refresh"}:
            raise ConfigurationError(
                f"A window's fields must be length_ms and refresh, not {fields!r:.200}."
            )
        return cls(fields["length_ms"], fields["refresh"])


@dataclass(frozen=True, slots=True)
class Declaration:
    """The content of the log's first record, which declares how its documents are judged.

    `floor` is the number of features below which texts are compared for equality only. `width` is
    that of the recipe's fingerprints in bits, `sketch_bytes` the size of its sketches; if they are
    missing, those of the first batch count. `format` is the log's first format.
    """

    recipe: str
    plan: Plan
    group: str
    floor: int
    mode: Mode = Mode.ENFORCE
    width: int | None = None
    window: Window | None = None
    sketch_bytes: int | None = None
    better: BetterRule = BetterRule.LONGEST
    count_copies: bool = False
    format: int = FIRST_FORMAT

    def to_fields(self) -> dict[str, Any]:
        """Return the fields of a `declare` control record."""
        fields: dict[str, Any] = {
            "recipe": self.recipe,
            "plan": self.plan.to_fields(),
            "group": self.group,
            "floor": self.floor,
            "mode": int(self.mode),
            "better": self.better.label,
        }
        if self.width is not None:
            fields["width"] = self.width
        if self.sketch_bytes is not None:
            fields["sketch_bytes"] = self.sketch_bytes
        if self.count_copies:
            fields["count_copies"] = True
        if self.format != FIRST_FORMAT:
            fields["format"] = self.format
        if self.window is not None:
            fields["window"] = self.window.to_fields()
        return fields

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Declaration:
        """Return the declaration in a `declare` control record; unknown fields are ignored.

        A missing mode is `enforce`, a missing rule `longest`, a missing format the first.

        Raises:
            ConfigurationError: a field is missing or invalid.
        """
        plan = Plan.from_fields(fields.get("plan"))
        width = _number_field(fields, "width", WIDTH_MAX) if "width" in fields else None
        if width is not None and (width % 64 or width < plan.width):
            raise ConfigurationError(
                f"The plan {plan.id} cannot compare fingerprints of {width} bits; choose a plan "
                "of at most that width."
            )
        sketch_bytes = (
            _number_field(fields, "sketch_bytes", SKETCH_BYTES)
            if "sketch_bytes" in fields
            else None
        )
        if plan.needs_sketch and sketch_bytes not in (None, SKETCH_BYTES):
            raise ConfigurationError(
                f"The plan {plan.id} compares sketches, but the recipe computes none; choose "
                "another plan."
            )
        return cls(
            recipe=_name_field(fields, "recipe"),
            plan=plan,
            group=_name_field(fields, "group"),
            floor=_number_field(fields, "floor", _U32_MAX),
            mode=Mode(_number_field(fields, "mode", len(Mode) - 1))
            if "mode" in fields
            else Mode.ENFORCE,
            width=width,
            window=None if fields.get("window") is None else Window.from_fields(fields["window"]),
            sketch_bytes=sketch_bytes,
            count_copies=_flag_field(fields, "count_copies"),
            better=BetterRule.named(fields["better"]) if "better" in fields else BetterRule.LONGEST,
            format=format_of(fields["format"]) if "format" in fields else FIRST_FORMAT,
        )


def format_of(value: object) -> int:
    """Return the format that a control record names.

    Raises:
        ConfigurationError: this program knows no such format.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value not in FORMATS:
        raise ConfigurationError(
            f"The log has no format {value!r:.40}; this version writes "
            f"{' and '.join(map(str, sorted(FORMATS)))}."
        )
    return value


def parse_retraction(fields: Mapping[str, Any]) -> list[tuple[Partition, int, int]]:
    """Return the (partition, offset, value digest) of each position that a `retract` record names.

    Raises:
        ConfigurationError: there are none, too many, or an invalid one.
    """
    topic, hex_digits = _text_field(fields, "topic"), _text_field(fields, "topic_id")
    try:
        topic_id = bytes.fromhex(hex_digits)
    except ValueError:
        topic_id = b""
    values = fields.get("positions")
    if (
        len(topic_id) != TOPIC_ID_BYTES
        or not isinstance(values, list)
        or not 0 < len(values) <= DOCUMENTS_MAX
        or not all(isinstance(value, list) and len(value) == 3 for value in values)
    ):
        raise ConfigurationError(
            "A retraction must contain the id of a topic in hexadecimal digits and 1 to "
            f"{DOCUMENTS_MAX} positions of three numbers, not {hex_digits!r:.40} and "
            f"{values!r:.100}."
        )
    highest = {"partition": _U32_MAX, "offset": OFFSET_MAX, "value_digest": _U64_MAX}
    positions = []
    for value in values:
        numbers = dict(zip(highest, value, strict=True))
        partition, offset, digest = (_number_field(numbers, *item) for item in highest.items())
        positions.append(((topic, topic_id, partition), offset, digest))
    return positions


def _text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text.

    Raises:
        ConfigurationError: it is missing or of another type.
    """
    value = fields.get(name)
    if not isinstance(value, str):
        raise ConfigurationError(
            f"The field {name} of a control record must be a text, not {value!r:.100}."
        )
    return value


def _name_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a printable text of 1 to 255 bytes.

    Raises:
        ConfigurationError: it is missing or not such a text.
    """
    value = _text_field(fields, name)
    if (
        not 0 < len(value.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX
        or not value.isprintable()
    ):
        raise ConfigurationError(
            f"The field {name} of a control record must be a printable name, not {value!r:.100}."
        )
    return value


def _flag_field(fields: Mapping[str, Any], name: str) -> bool:
    """Return a field that is true or false; false if it is missing.

    Raises:
        ConfigurationError: it is neither.
    """
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise ConfigurationError(
            f"The field {name} of a control record must be true or false, not {value!r:.100}."
        )
    return value


def _number_field(fields: Mapping[str, Any], name: str, highest: int) -> int:
    """Return a field that is a whole number from 0 to `highest`.

    Raises:
        ConfigurationError: it is missing or not such a number.
    """
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise ConfigurationError(
            f"The field {name} of a control record must be a whole number, not {value!r:.100}."
        )
    return value
