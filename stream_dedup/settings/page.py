"""The reference page of all settings, made from `settings.Settings`, so that it cannot say anything
else than the code.
"""

from __future__ import annotations

import types
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from stream_dedup.settings.properties import FROM_FILE_PROPERTIES, PREFIX, environment_name
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import as_text

_HEAD = f"""\
# Settings

Made by `stream-dedup config show --reference`; do not edit by hand.

Where a value comes from, the first that has it: a flag (`--set NAME=VALUE`, or one of its own), the environment
(`{PREFIX}*`), a file (TOML or YAML; `--config FILE` or `{PREFIX}CONFIG`), the input preset, the default. `stream-dedup config
show --origin` tells for each. An empty variable counts as not given. A name that is none of these is an error, and so is a
value that cannot be used: everything wrong is reported at once, with the nearest name, and the exit code is 78.

In a file the names are written in lower case, without the prefix; Kafka properties stand in a table `kafka`:

```toml
kafka_bootstrap_servers = "kafka-1:9093,kafka-2:9093"
group = "crawl"
value_format = "json"

[kafka]
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "SCRAM-SHA-512"
"sasl.username" = "crawl"
```

In brackets stand what a value may be and the default, if there is one. Times are
written `250ms`, `30s`, `15m`, `12h`, `30d`; sizes `500MB` (10^6) or `64MiB` (2^20).

Each setting can be linked to by its name in a file, as in `configuration.md#topic_prefix`.
"""

TEN = {
    "kafka_bootstrap_servers": "where Kafka is",
    "kafka": "TLS and SASL of your cluster",
    "topic_prefix": "a second filter on the cluster, or one prefixed ACL",
    "input_preset": "records of Nutch, Scrapy Cluster or ACHE as they come",
    "value_format": "values that are more than the text: JSON, Avro",
    "text_field": "where the text stands in them",
    "id_field": "where the address of the page stands, if the key is not it",
    "key_file": "before the first document, so that nobody can craft collisions; kept as long as the log",
    "similarity": "from how alike on a text is a copy",
    "window": "an index that stays at one size",
}
"""The settings that nearly each filter sets, and for which need; the first table of the page."""

_TABLE = """
## {heading}

"""

_TEN = """
## The ten that nearly each filter sets

"""

GROUPS = {
    "Kafka": "kafka_bootstrap_servers",
    "What becomes of duplicates": "mode",
    "Names and topics": "topic_prefix",
    "What a record's text is": "input_preset",
    "What is alike": "recipe",
    "Languages": "user_dictionary",
    "Throughput and memory": "batch_documents",
    "Folder": "state_dir",
    "Probes and logs": "http_host",
    "Snapshots of the index": "snapshots",
    "Search": "search_keep",
    "Console": "console_token_file",
}
"""The headings of the page, and with which setting each begins; the others follow as they stand in
`Settings`."""

_TAIL = f"""
## Secrets from files

For these Kafka properties a variable that ends in `_FILE` names a file that holds the value (a line break at its end is
cut off): {{properties}}. So `{PREFIX}KAFKA_SASL_PASSWORD_FILE=/run/secrets/kafka-password`. `{PREFIX}REGISTRY_URL_FILE` does
so for the registry's address with its password; `{PREFIX}KEY_FILE` is a file anyway.

## Kubernetes

Variables that Kubernetes makes for Services whose names begin with `stream-dedup` (`STREAM_DEDUP_INDEX_SERVICE_HOST`,
`STREAM_DEDUP_INDEX_PORT=tcp://...`) are passed over.
"""


def reference_page() -> str:
    """Return the page as Markdown."""
    fields = Settings.model_fields
    ten = "".join(f"- [`{_variable(name)}`](#{name}): {why}\n" for name, why in TEN.items())
    headings = {first: _TABLE.format(heading=heading) for heading, first in GROUPS.items()}
    tables = "".join(headings.get(name, "") + _row(name, field) for name, field in fields.items())
    properties = ", ".join(f"`{name}`" for name in sorted(FROM_FILE_PROPERTIES))
    return _HEAD + _TEN + ten + tables + _TAIL.format(properties=properties)


def _variable(name: str) -> str:
    return f"{PREFIX}KAFKA_<PROP>" if name == "kafka" else environment_name(name)


def _row(name: str, field: FieldInfo) -> str:
    description = " ".join((field.description or "").split())
    default = _default(field)
    value = _form_of(field.annotation, field.metadata) + (
        "" if default == "none" else f"; {default}"
    )
    return f'- <a id="{name}"></a>`{_variable(name)}` ({value}): {description}\n'


def _default(field: FieldInfo) -> str:
    extra = field.json_schema_extra
    if isinstance(extra, dict) and "default_text" in extra:
        return str(extra["default_text"])
    if field.default_factory is not None or field.default is None or field.default == "":
        return "none"
    return f"`{as_text(field.default)}`"


def _form_of(annotation: Any, metadata: list[Any]) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _form_of(inner, [*more, *metadata])
    if origin in (Union, types.UnionType):
        return " or ".join(
            _form_of(one, metadata) for one in get_args(annotation) if one is not type(None)
        )
    if origin is Literal:
        return " or ".join(f"`{one}`" for one in get_args(annotation))
    if origin is dict:
        return "text"
    names = {
        bool: "`true` or `false`",
        int: "whole number",
        timedelta: "time",
        Path: "path",
        str: "text",
    }
    name = names[annotation]
    low = next((as_text(one.ge) for one in metadata if isinstance(one, annotated_types.Ge)), None)
    high = next((as_text(one.le) for one in metadata if isinstance(one, annotated_types.Le)), None)
    return f"{name}, {low} to {high}" if low is not None and high is not None else name
