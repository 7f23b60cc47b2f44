"""The log's declaration: recipe, plan, window, group, floor, mode and rule of the better copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream_dedup.domain.better import BetterRule
from stream_dedup.domain.document import Mode
from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.plan import WIDTH_MAX, Plan
from stream_dedup.domain.sketch import SKETCH_BYTES
from stream_dedup.index.rules.window import Window, format_of
from stream_dedup.log.frame import FIRST_FORMAT

U32_MAX: Final = (1 << 32) - 1
_NAME_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Declaration:
    """The content of the log's first record: recipe, plan, window, group, floor of features and
    mode.

    `width` is that of the recipe's prints in bits, `sketch_bytes` the size of its sketches; if they
    are missing, the first batch contains them. `format` is the log's first.
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
        width = number_field(fields, "width", WIDTH_MAX) if "width" in fields else None
        if width is not None and (width % 64 or width < plan.width):
            raise ConfigurationError(
                f"The plan {plan.id} cannot judge prints of {width} bits; name a narrower plan."
            )
        sketch_bytes = (
            number_field(fields, "sketch_bytes", SKETCH_BYTES) if "sketch_bytes" in fields else None
        )
        if plan.needs_sketch and sketch_bytes not in (None, SKETCH_BYTES):
            raise ConfigurationError(
                f"The plan {plan.id} compares sketches, and the recipe makes none; name another "
                "plan."
            )
        return cls(
            recipe=name_field(fields, "recipe"),
            plan=plan,
            group=name_field(fields, "group"),
            floor=number_field(fields, "floor", U32_MAX),
            mode=Mode(number_field(fields, "mode", len(Mode) - 1))
            if "mode" in fields
            else Mode.ENFORCE,
            width=width,
            window=None if fields.get("window") is None else Window.from_fields(fields["window"]),
            sketch_bytes=sketch_bytes,
            count_copies=flag_field(fields, "count_copies"),
            better=BetterRule.named(fields["better"]) if "better" in fields else BetterRule.LONGEST,
            format=format_of(fields["format"]) if "format" in fields else FIRST_FORMAT,
        )


def text_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text.

    Raises:
        ConfigurationError: it is missing or none.
    """
    value = fields.get(name)
    if not isinstance(value, str):
        raise ConfigurationError(
            f"The field {name} of a control record must be a text, not {value!r:.100}."
        )
    return value


def name_field(fields: Mapping[str, Any], name: str) -> str:
    """Return a field that is a printable text of 1 to 255 bytes.

    Raises:
        ConfigurationError: it is missing or none.
    """
    value = text_field(fields, name)
    if (
        not 0 < len(value.encode("utf-8", "surrogatepass")) <= _NAME_BYTES_MAX
        or not value.isprintable()
    ):
        raise ConfigurationError(
            f"The field {name} of a control record must be a printable name, not {value!r:.100}."
        )
    return value


def flag_field(fields: Mapping[str, Any], name: str) -> bool:
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


def number_field(fields: Mapping[str, Any], name: str, highest: int) -> int:
    """Return a field that is a whole number from 0 to `highest`.

    Raises:
        ConfigurationError: it is missing or none.
    """
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        raise ConfigurationError(
            f"The field {name} of a control record must be a whole number, not {value!r:.100}."
        )
    return value
