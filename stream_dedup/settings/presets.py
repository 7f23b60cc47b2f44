"""Input presets: for each crawler the settings that fit what it writes to Kafka.

Invariants: a preset holds defaults only, so a setting that is given wins; its names are names of settings; each is held
against a sample of the crawler's own format in tests/inputs/samples.

Sources: Nutch `KafkaIndexWriter` (plugin indexer-kafka: a JSON object of arrays of strings, no key; dates pass through
Java's `toString`, so no time can be read). Scrapy Cluster `KafkaPipeline` (crawled_firehose: the page in `body`, as text
unless KAFKA_BASE_64_ENCODE; no key). ACHE `TargetModelJson` (format JSON: the page's bytes in `content`, which Jackson writes
as base64; `fetch_time` counts from 1970).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

PRESETS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "raw": MappingProxyType({}),
        "nutch": MappingProxyType({"value_format": "json", "text_field": "content", "id_field": "id"}),
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
