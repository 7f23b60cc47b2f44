"""Check the properties of Kafka's clients: known, safe for delivery, large enough, encrypted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.topics import TopicNames, TopicState
from stream_dedup.kafka.client import (
    check_each_property,
    property_problems,
)
from stream_dedup.log.records import RECORD_BYTES_MAX
from stream_dedup.preflight.finding import CheckFinding, Problems, not_checked, ok, refused, warning
from stream_dedup.preflight.machine import is_local_host
from stream_dedup.settings.layers import CheckedSettings
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_RECEIVED_BYTES_MAX = 100_000_000  # librdkafka's default of receive.message.max.bytes
_PROTOCOL_BYTES = 512


def unusable_values(checked: CheckedSettings) -> list[str]:
    """Return a sentence for each value that is well-formed but cannot be used: a key file without a
    key, a list with a bad line, a property that librdkafka does not know.
    """
    if checked.settings is None:
        return check_each_property(checked.kafka, checked.origins)
    problems = property_problems(checked.settings)
    try:
        recipe_of(checked.settings)
    except ConfigurationError as error:
        return [str(error), *problems]
    return problems


def check_clients(
    settings: Settings, names: TopicNames, topics: Mapping[str, TopicState] | None
) -> list[CheckFinding]:
    """Return the findings about the clients; `topics` is None if the cluster does not answer."""
    return [
        *_properties(settings),
        *_sizes(settings, names, topics),
        *_encryption(settings),
    ]


def _properties(settings: Settings) -> Iterator[CheckFinding]:
    problems = property_problems(settings)
    yield from (refused("properties", problem) for problem in problems)
    if not problems:
        yield ok(
            "properties", f"librdkafka accepts all {len(settings.kafka)} properties that are set."
        )


def _sizes(
    settings: Settings, names: TopicNames, topics: Mapping[str, TopicState] | None
) -> Iterator[CheckFinding]:
    written_max = _bytes(settings, "message.max.bytes", 100_000_000)
    read_max = _bytes(settings, "receive.message.max.bytes", _RECEIVED_BYTES_MAX)
    problems = Problems("client sizes")
    if written_max < RECORD_BYTES_MAX + _PROTOCOL_BYTES:
        problems.refuse(
            f"The Kafka property message.max.bytes is {written_max:,}, but a batch for the log can "
            f"have {RECORD_BYTES_MAX:,} bytes and could not be written. Remove the property; "
            "max.message.bytes of the topics then applies."
        )
    if topics is None:
        yield from problems.findings or [
            not_checked("client sizes", "The topics' max.message.bytes is not known.")
        ]
        return
    for name, topic in topics.items():
        limit_text = topic.config.get("max.message.bytes", "")
        if not limit_text.isdigit():
            continue
        if (
            name in (names.documents, names.verdicts, names.fingerprints)
            and read_max < int(limit_text) + _PROTOCOL_BYTES
        ):
            problems.refuse(
                f"The Kafka property receive.message.max.bytes is {read_max:,}, but {name} can "
                f"contain records of {int(limit_text):,} bytes: workers could not read such a "
                "record or any record after it. Set at least "
                f"{int(limit_text) + _PROTOCOL_BYTES:,}."
            )
        if name in names.outputs and _PROTOCOL_BYTES + RECORD_BYTES_MAX <= written_max < int(
            limit_text
        ):
            problems.warn(
                f"The Kafka property message.max.bytes is {written_max:,}, less than {name} accepts "
                f"({int(limit_text):,}), so larger documents become dead letters. Remove the "
                "property."
            )
    yield from problems.or_ok("The clients accept all records that the topics accept.")


def _encryption(settings: Settings) -> Iterator[CheckFinding]:
    properties = settings.kafka
    protocol = properties.get("security.protocol", "plaintext").upper()
    verifies = properties.get("enable.ssl.certificate.verification", "true").lower() not in (
        "false",
        "0",
    )
    checks_host = (
        properties.get("ssl.endpoint.identification.algorithm", "https").lower() == "https"
    )
    if protocol in ("SSL", "SASL_SSL"):
        if not verifies or not checks_host:
            what = "certificate" if not verifies else "host name"
            yield warning(
                "encryption",
                f"The brokers' {what} is not verified, so anybody on the network can pose as a "
                "broker. Set ssl.ca.location, and remove "
                f"{'enable.ssl.certificate.verification' if not verifies else 'ssl.endpoint.identification.algorithm'}.",
            )
        else:
            yield ok(
                "encryption",
                "Connections are encrypted, and the brokers' certificates are verified.",
            )
    elif all(map(_is_local_broker, settings.kafka_bootstrap_servers.split(","))):
        yield ok("encryption", "Connections are not encrypted, but do not leave this machine.")
    else:
        more = (
            " and the password" if properties.get("sasl.password") and _is_plain(properties) else ""
        )
        yield warning(
            "encryption",
            f"Documents{more} cross the network unencrypted. Set "
            "STREAM_DEDUP_KAFKA_SECURITY_PROTOCOL to SSL or SASL_SSL.",
        )


def _is_plain(properties: Mapping[str, str]) -> bool:
    return (
        properties.get("sasl.mechanism") or properties.get("sasl.mechanisms") or ""
    ).upper() == "PLAIN"


def _is_local_broker(broker: str) -> bool:
    return is_local_host(broker.strip().rpartition(":")[0].strip("[]"))


def _bytes(settings: Settings, name: str, default: int) -> int:
    text = settings.kafka.get(name, "")
    return int(text) if text.isdigit() else default
