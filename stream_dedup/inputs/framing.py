"""Confluent's wire format of JSON: a zero byte, the schema's id (4 bytes, big-endian), then the JSON itself.

The registry is never asked: JSON needs no schema to be read, so a registry that is away stops nothing. Whether a value follows
its schema is its producer's business. Source: Confluent Schema Registry, "Wire format".
"""

from __future__ import annotations

HEADER_BYTES = 5
_MAGIC = 0


def unframe(value: bytes) -> bytes | str:
    """Return the JSON of a framed value, or a sentence that says why it is none."""
    if len(value) < HEADER_BYTES:
        return f"The value has {len(value)} bytes, and Confluent's frame alone has {HEADER_BYTES}."
    if value[0] != _MAGIC:
        return (
            f"The value begins with the byte {value[0]}, and Confluent's frame with 0; for JSON without a frame set "
            "STREAM_DEDUP_VALUE_FORMAT=json."
        )
    return value[HEADER_BYTES:]
