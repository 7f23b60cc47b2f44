"""Read settings from flags, the environment, a file and a preset, in this order of precedence:

    flag  >  environment STREAM_DEDUP_*  >  file (TOML, STREAM_DEDUP_CONFIG)  >  input preset  >  default

Invariants: all problems are reported at once, each in a sentence; a misspelt setting is an error, and
is never ignored.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.settings.properties import (
    BOOTSTRAP_VARIABLE,
    CONFIG_VARIABLE,
    FIXED_PROPERTIES,
    FROM_FILE_FIELDS,
    FROM_FILE_PROPERTIES,
    KAFKA_PREFIX,
    NOT_SETTINGS,
    PREFIX,
    PROPERTY_NAME,
    environment_name,
    is_service_link,
    property_of,
    property_value,
)
from stream_dedup.settings.sentences import (
    describe_error,
    describe_problems,
    describe_toml_error,
    safe_name,
    shorten,
)
from stream_dedup.settings.settings import Settings, Source, ValueOrigin

PRESETS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "raw": MappingProxyType({}),
        "nutch": MappingProxyType(
            {
                "value_format": "json",
                "text_field": "content",
                "id_field": "id",
                "title_field": "title",
            }
        ),
        "scrapy-cluster": MappingProxyType(
            {
                "value_format": "json",
                "text_field": "body",
                "text_is": "html",
                "id_field": "url",
                "time_field": "timestamp",
            }
        ),
        "ache": MappingProxyType(
            {
                "value_format": "json",
                "text_field": "content",
                "text_is": "html",
                "text_encoding": "base64",
                "id_field": "url",
                "time_field": "fetch_time",
            }
        ),
    }
)
BROKERS_FLAG = "--bootstrap-servers"


def load_settings(
    overrides: Mapping[str, object] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Return the settings of flags, environment, file, preset and defaults.

    `overrides`: the flags; None means not set. A key is a name of `--set`, `kafka.<property>`, or a
    flag with the name of a setting, such as `--plan`. `--similarity` also sets `similarity_unsure`,
    unless that is set. `file`: has precedence over `STREAM_DEDUP_CONFIG`.

    Raises:
        ConfigurationError: a setting is invalid; the message lists all problems.
    """
    checked = check_settings(overrides, file, environ)
    settings, problems = checked.settings, checked.problems
    if settings is None or problems:
        head = (
            "The configuration is invalid:"
            if len(problems) == 1
            else (f"The configuration is invalid, for {len(problems)} reasons:")
        )
        raise ConfigurationError("\n".join([head, *(f"  - {problem}" for problem in problems)]))
    similarity = (overrides or {}).get("--similarity")
    if similarity is not None and settings.similarity_unsure is None:
        return load_settings({**(overrides or {}), "similarity_unsure": similarity}, file, environ)
    return settings


class CheckedSettings(NamedTuple):
    """The result of `check_settings`. `settings`: None if a value is invalid; `kafka`: the Kafka
    properties, which can be checked even if another value is invalid; `origins`: the origin of each value.
    """

    settings: Settings | None
    problems: list[str]
    kafka: Mapping[str, str]
    origins: Mapping[str, ValueOrigin]


def check_settings(
    overrides: Mapping[str, object] | None = None,
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> CheckedSettings:
    """Return the settings that `load_settings` returns, and the problems as a list of sentences."""
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    sources: tuple[Source, ...] = ("flag", "environment", "file", "preset")
    layers = [Layer(source, problems) for source in sources]
    _read_flags(layers[0], overrides or {})
    _read_environment(layers[1], environ)
    path = file or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if path is not None:
        _read_file(layers[2], path)
    _read_preset(layers)
    origins: dict[str, ValueOrigin] = {}
    for layer in layers:
        for name, origin in layer.origins.items():
            origins.setdefault(name, origin)
    kafka = {
        prop: text
        for layer in reversed(layers)
        for prop, text in layer.values.get("kafka", {}).items()
    }
    values: dict[str, Any] = {
        name: value for layer in reversed(layers) for name, value in layer.values.items()
    }
    if kafka:
        values["kafka"] = kafka
    try:
        settings = Settings(**values)
    except ValidationError as error:
        problems += describe_problems(error, origins)
        return CheckedSettings(None, problems, kafka, origins)
    settings._origins = dict(origins)
    return CheckedSettings(settings, problems, kafka, origins)


class Layer:
    """The values of one source by the name of the setting (`kafka` is a dict), with their origins.
    Problems are appended to `problems`.
    """

    def __init__(self, source: Source, problems: list[str]) -> None:
        self.source = source
        self.problems = problems
        self.values: dict[str, Any] = {}
        self.origins: dict[str, ValueOrigin] = {}

    def put(self, name: str, value: object, location: str) -> None:
        """Store a setting."""
        self.values[name] = value
        self.origins[name] = ValueOrigin(self.source, location)

    def put_property(self, prop: str, value: object, location: str) -> None:
        """Store a Kafka property, or a problem if it is invalid or fixed."""
        if not PROPERTY_NAME.match(prop):
            self.problems.append(
                f"{location} would be the Kafka property {shorten(safe_name(prop))}, which is not a "
                "valid name."
            )
        elif prop in FIXED_PROPERTIES:
            self.problems.append(
                f"{location} would set the Kafka property {prop}, which cannot be changed: "
                f"{FIXED_PROPERTIES[prop]}."
            )
        elif isinstance(value, bool):
            self.put_property(prop, str(value).lower(), location)
        elif isinstance(value, str | int | float):
            try:
                self.values.setdefault("kafka", {})[prop] = property_value(prop, str(value))
            except ValueError as error:
                self.problems.append(f"{location} is {shorten(repr(value))}, but {error}.")
            self.origins[f"kafka.{prop}"] = ValueOrigin(self.source, location)
        else:
            self.problems.append(
                f"{location} must be a text or a number, and is a {type(value).__name__}."
            )


def _read_flags(layer: Layer, overrides: Mapping[str, object]) -> None:
    for key, value in overrides.items():
        if value is None:
            continue
        is_flag = key.startswith("--")
        location = key if is_flag else f"--set {key}"
        name = key[2:].replace("-", "_") if is_flag else key
        name = "kafka_bootstrap_servers" if key == BROKERS_FLAG else name
        if name == "kafka" and isinstance(value, Mapping):
            for prop, text in value.items():
                layer.put_property(str(prop), text, f"--set kafka.{prop}")
        elif name.startswith("kafka."):
            layer.put_property(name.removeprefix("kafka."), value, location)
        elif name in Settings.model_fields and name != "kafka":
            layer.put(name, value, location)
        else:
            layer.problems.append(_unknown(f"The flag for {shorten(name)}", name, _field_names()))


def _read_environment(layer: Layer, environ: Mapping[str, str]) -> None:
    by_variable = {environment_name(name): name for name in _field_names()}
    by_file = {f"{environment_name(name)}_FILE": name for name in FROM_FILE_FIELDS}
    if environ.get(BOOTSTRAP_VARIABLE):
        layer.put("kafka_bootstrap_servers", environ[BOOTSTRAP_VARIABLE], BOOTSTRAP_VARIABLE)
    for variable, value in sorted(environ.items()):
        if (
            not variable.upper().startswith(PREFIX)
            or variable in NOT_SETTINGS
            or is_service_link(variable, value)
        ):
            continue
        if variable in by_variable:
            # An empty variable counts as unset, because compose files and charts write `NAME=` for that.
            if value:
                layer.put(by_variable[variable], value, variable)
        elif variable in by_file:
            if value:
                _read_secret_file(layer, by_file[variable], variable, value, environ)
        elif variable.startswith(KAFKA_PREFIX) and variable != KAFKA_PREFIX:
            if value:
                _read_property_variable(layer, variable, value, environ)
        else:
            known = [*by_variable, CONFIG_VARIABLE, environment_name("kafka.sasl.password")]
            layer.problems.append(
                _unknown(f"The environment variable {shorten(variable)}", variable.upper(), known)
            )


def _read_property_variable(
    layer: Layer, variable: str, value: str, environ: Mapping[str, str]
) -> None:
    prop = property_of(variable)
    secret = prop.removesuffix(".file")
    if prop == secret or secret not in FROM_FILE_PROPERTIES:
        layer.put_property(prop, value, variable)
        return
    _read_secret_file(layer, f"kafka.{secret}", variable, value, environ)


def _read_secret_file(
    layer: Layer, name: str, variable: str, value: str, environ: Mapping[str, str]
) -> None:
    """Read a setting, or a property `kafka.<property>`, from the file at the path `value`."""
    direct = variable.removesuffix("_FILE")
    if environ.get(direct):
        layer.problems.append(f"Both {direct} and {variable} are set; remove one of them.")
        return
    try:
        content = Path(value).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        layer.problems.append(
            f"{variable} names the file {shorten(value)}, which cannot be read: {describe_error(error)}."
        )
        return
    content, location = content.rstrip("\r\n"), f"{variable} ({value})"
    if name.startswith("kafka."):
        layer.put_property(name.removeprefix("kafka."), content, location)
    else:
        layer.put(name, content, location)


def _read_file(layer: Layer, path: Path) -> None:
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        layer.problems.append(
            f"The configuration file {path} cannot be read: {describe_error(error)}."
        )
        return
    if path.suffix.lower() != ".toml":
        layer.problems.append(f"The configuration file {path} must end in .toml.")
        return
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        layer.problems.append(
            f"The configuration file {path} cannot be parsed: {describe_toml_error(error)}."
        )
        return
    for name, value in content.items():
        location = f"{safe_name(str(name))} in {path}"
        if name == "kafka" and isinstance(value, dict):
            for prop, inner in _flatten(value):
                layer.put_property(prop, inner, f"kafka.{safe_name(prop)} in {path}")
        elif name == "kafka":
            layer.problems.append(f"{location} must be a table of Kafka properties.")
        elif name in Settings.model_fields:
            layer.put(name, value, location)
        else:
            layer.problems.append(_unknown(shorten(location), str(name), _field_names()))


def _read_preset(layers: list[Layer]) -> None:
    chosen = next(
        (layer.values["input_preset"] for layer in layers if "input_preset" in layer.values), None
    )
    # An invalid preset is reported together with the other values.
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


def _unknown(what: str, name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6) or difflib.get_close_matches(
        name.lower().replace("-", "_"), known, n=1, cutoff=0.6
    )
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "`stream-dedup config show --reference` lists all settings."
    )
    return f"{what} is not a setting; {hint}"
