"""Convert librdkafka's TLS and SASL properties for aiokafka, which Faust uses.

Invariants: the mapping is a pure function of the properties and the files they name; a property
that aiokafka does not support is refused, never ignored, because the connection would be less secure
than configured; a property that is not set has librdkafka's default (certificates and host names
are verified); no error contains a secret.

librdkafka's names: its CONFIGURATION.md; aiokafka's: the arguments of `aiokafka.AIOKafkaConsumer`.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from stream_dedup.domain.errors import ConfigurationError

_ENCRYPTED = ("SSL", "SASL_SSL")
_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
_NAME_FILES = "name PEM files: ssl.certificate.location and ssl.key.location"
# aiokafka has no equivalent of these properties; ignoring them would change the connection. The value
# is the remedy.
_UNSUPPORTED = {
    "ssl.keystore.location": _NAME_FILES,
    "ssl.certificate.pem": _NAME_FILES,
    "ssl.key.pem": _NAME_FILES,
    "ssl.engine.location": "give the key as PEM: ssl.key.location",
    "ssl.providers": "give the key as PEM: ssl.key.location",
    "ssl.crl.location": "append the revocation list to the file of ssl.ca.location, or omit it and use short-lived certificates",
    "sasl.oauthbearer.config": "use SCRAM or mutual TLS for this role",
    "sasl.oauthbearer.token.endpoint.url": "use SCRAM or mutual TLS for this role",
}


@dataclass(frozen=True, slots=True)
class Security:
    """The credentials of a client: `mechanism` is None without SASL, `ssl_context` without TLS.

    The password is not in `repr`.
    """

    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    kerberos_service: str = "kafka"
    ssl_context: ssl.SSLContext | None = None


def security_of(properties: Mapping[str, str]) -> Security:
    """Return the security settings in librdkafka properties.

    Raises:
        ConfigurationError: values are invalid or supported by librdkafka only, all reported at
        once; or a file cannot be read or has the wrong content.
    """
    protocol = properties.get("security.protocol", "plaintext").strip().upper()
    mechanism = None
    if protocol.startswith("SASL_"):
        configured = (
            properties.get("sasl.mechanisms") or properties.get("sasl.mechanism") or "GSSAPI"
        )
        mechanism = configured.strip().upper()
    if problems := _find_problems(properties, protocol, mechanism):
        raise ConfigurationError("\n".join(problems))
    context = _ssl_context(properties) if protocol in _ENCRYPTED else None
    if mechanism is None:
        return Security(ssl_context=context)
    return Security(
        mechanism=mechanism,
        username=properties.get("sasl.username"),
        password=properties.get("sasl.password"),
        kerberos_service=properties.get("sasl.kerberos.service.name", "kafka"),
        ssl_context=context,
    )


def _find_problems(
    properties: Mapping[str, str], protocol: str, mechanism: str | None
) -> list[str]:
    """Return a sentence for each property that is invalid, missing or supported by librdkafka only;
    `mechanism` is None without SASL.
    """
    problems = [
        f"The Kafka property {name} cannot be used by this role's client; {remedy}."
        for name, remedy in _UNSUPPORTED.items()
        if properties.get(name)
    ]
    if protocol not in _PROTOCOLS:
        problems.append(
            f"The Kafka property security.protocol is {protocol!r}, but must be "
            f"{' or '.join(_PROTOCOLS)}."
        )
    if mechanism is not None and mechanism not in _MECHANISMS:
        problems.append(
            f"The Kafka property sasl.mechanism is {mechanism!r}, but for this role must be "
            f"{' or '.join(_MECHANISMS)}."
        )
    if mechanism not in (None, "GSSAPI", "OAUTHBEARER"):
        problems += [
            f"The Kafka property {name} is missing, and {mechanism} needs it; a variable that ends "
            "in _FILE names a file that contains it."
            for name in ("sasl.username", "sasl.password")
            if not properties.get(name)
        ]
    has_certificate = bool(properties.get("ssl.certificate.location"))
    if protocol in _ENCRYPTED and has_certificate != bool(properties.get("ssl.key.location")):
        missing = "ssl.key.location" if has_certificate else "ssl.certificate.location"
        problems.append(
            f"The Kafka property {missing} is missing: set both the certificate and its key."
        )
    return problems


def _ssl_context(properties: Mapping[str, str]) -> ssl.SSLContext:
    """Return Python's TLS context.

    Raises:
        ConfigurationError: a file cannot be read or has the wrong content.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    verification = properties.get("enable.ssl.certificate.verification", "true").strip().lower()
    identification = properties.get("ssl.endpoint.identification.algorithm", "https")
    verifies = verification not in ("false", "0")
    # In this order: Python does not allow CERT_NONE while host names are still checked.
    context.check_hostname = verifies and identification.strip().lower() == "https"
    context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
    location = properties.get("ssl.ca.location")
    try:
        # As in librdkafka, an inline certificate has precedence over a file, and a location may be
        # a folder of certificates.
        if properties.get("ssl.ca.pem"):
            context.load_verify_locations(cadata=properties["ssl.ca.pem"])
        elif location and location != "probe":
            is_folder = os.path.isdir(location)  # noqa: PTH112 - a str, as in librdkafka
            context.load_verify_locations(**{"capath" if is_folder else "cafile": location})
        else:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"The certificates of the authority ({location or 'ssl.ca.pem'}) cannot be used: "
            f"{_reason_of(error)}. ssl.ca.location must name a PEM file, or a folder of them."
        ) from error
    certificate, key = (properties.get(f"ssl.{name}.location") for name in ("certificate", "key"))
    if certificate:
        try:
            # A callable: otherwise Python asks for a missing password on the terminal.
            context.load_cert_chain(
                certificate, key, lambda: properties.get("ssl.key.password", "")
            )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                f"The client's certificate and key ({certificate}, {key}) cannot be used: "
                f"{_reason_of(error)}. Both must be PEM files of one key pair, and "
                "ssl.key.password must decrypt the key."
            ) from error
    return context


def _reason_of(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
