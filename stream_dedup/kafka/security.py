"""TLS and SASL for aiokafka (and so Faust), from the same librdkafka properties.

Invariants: the mapping is a pure function of the properties and the files they name; a property
that aiokafka does not support is refused, never ignored, because the connection would be less secure
than configured; a property that is not set has librdkafka's default (certificates and host names
are verified); no error contains a secret.

librdkafka's names: its CONFIGURATION.md; aiokafka's: the arguments of `aiokafka.AIOKafkaConsumer`.
"""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, cast

from stream_dedup.domain.errors import ConfigurationError

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]

_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI")
# aiokafka has no equivalent of these properties, and ignoring them would change the connection.
_IMPOSSIBLE = {
    "ssl.keystore.location": "give the certificate and key as PEM: ssl.certificate.location and ssl.key.location",
    "ssl.engine.location": "give the key as PEM: ssl.key.location",
    "ssl.providers": "give the key as PEM: ssl.key.location",
    "ssl.crl.location": "append the revocation list to the file of ssl.ca.location, or leave it to a short-lived certificate",
    "sasl.oauthbearer.config": "use SCRAM or mutual TLS for this role",
    "sasl.oauthbearer.token.endpoint.url": "use SCRAM or mutual TLS for this role",
}


@dataclass(frozen=True, slots=True)
class Security:
    """The credentials of a client and the authorities it trusts. Paths are PEM files; `*_pem` are
    inline contents.

    If `ca_location` and `ca_pem` are None, the system's authorities are trusted. Secrets are not in
    `repr`.
    """

    protocol: Protocol = "PLAINTEXT"
    mechanism: str | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    kerberos_service: str = "kafka"
    ca_location: str | None = None
    ca_pem: str | None = field(default=None, repr=False)
    certificate_location: str | None = None
    certificate_pem: str | None = field(default=None, repr=False)
    key_location: str | None = None
    key_pem: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    verifies: bool = True
    checks_host: bool = True

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return self.protocol in ("SSL", "SASL_SSL")


def security_of(properties: Mapping[str, str]) -> Security:
    """Return the security settings in librdkafka properties.

    Raises:
        ConfigurationError: values are invalid or supported by librdkafka only; all problems are
        reported at once.
    """
    protocol = properties.get("security.protocol", "plaintext").strip().upper()
    uses_sasl = protocol.startswith("SASL_")
    mechanism = (
        (properties.get("sasl.mechanisms") or properties.get("sasl.mechanism") or "GSSAPI")
        .strip()
        .upper()
    )
    problems = _find_problems(properties, protocol, mechanism if uses_sasl else None)
    if problems:
        raise ConfigurationError("\n".join(problems))
    identification = (
        properties.get("ssl.endpoint.identification.algorithm", "https").strip().lower()
    )
    verifies = properties.get(
        "enable.ssl.certificate.verification", "true"
    ).strip().lower() not in ("false", "0")
    return Security(
        protocol=cast("Protocol", protocol),
        mechanism=mechanism if uses_sasl else None,
        username=properties.get("sasl.username") if uses_sasl else None,
        password=properties.get("sasl.password") if uses_sasl else None,
        kerberos_service=properties.get("sasl.kerberos.service.name", "kafka"),
        ca_location=properties.get("ssl.ca.location"),
        ca_pem=properties.get("ssl.ca.pem"),
        certificate_location=properties.get("ssl.certificate.location"),
        certificate_pem=properties.get("ssl.certificate.pem"),
        key_location=properties.get("ssl.key.location"),
        key_pem=properties.get("ssl.key.pem"),
        key_password=properties.get("ssl.key.password"),
        verifies=verifies,
        checks_host=verifies and identification == "https",
    )


def _find_problems(
    properties: Mapping[str, str], protocol: str, mechanism: str | None
) -> list[str]:
    """Return a sentence for each property that is invalid, missing or supported by librdkafka only;
    `mechanism` is None without SASL.
    """
    problems = [
        f"The Kafka property {name} cannot be used by this role's client; {remedy}."
        for name, remedy in _IMPOSSIBLE.items()
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
    has_certificate = bool(
        properties.get("ssl.certificate.location") or properties.get("ssl.certificate.pem")
    )
    has_key = bool(properties.get("ssl.key.location") or properties.get("ssl.key.pem"))
    if protocol in ("SSL", "SASL_SSL") and has_certificate != has_key:
        missing = "ssl.key.location" if has_certificate else "ssl.certificate.location"
        problems.append(
            f"The Kafka property {missing} is missing: a certificate and its key are given "
            "together."
        )
    return problems


def ssl_context(security: Security) -> ssl.SSLContext | None:
    """Return Python's TLS context; None without TLS.

    Raises:
        ConfigurationError: a file cannot be read or has the wrong content.
    """
    if not security.is_encrypted:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # In this order: Python refuses to stop verifying while it still compares host names.
    context.check_hostname = security.checks_host
    context.verify_mode = ssl.CERT_REQUIRED if security.verifies else ssl.CERT_NONE
    try:
        # As in librdkafka, an inline certificate has precedence over a file, and a location may be
        # a folder of certificates.
        if security.ca_pem:
            context.load_verify_locations(cadata=security.ca_pem)
        elif security.ca_location and security.ca_location != "probe":
            is_folder = os.path.isdir(security.ca_location)  # noqa: PTH112 - as text, as librdkafka takes it
            context.load_verify_locations(
                **{"capath" if is_folder else "cafile": security.ca_location}
            )
        else:
            context.load_default_certs()
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"The certificates of the authority ({security.ca_location or 'ssl.ca.pem'}) cannot be "
            f"used: {_why(error)}. "
            "ssl.ca.location must name a PEM file, or a folder of them."
        ) from error
    _load_own(context, security)
    return context


def _load_own(context: ssl.SSLContext, security: Security) -> None:
    """Load the client's certificate and key. Python reads them from files only, so inline ones are
    written to temporary files.
    """
    if not (security.certificate_location or security.certificate_pem):
        return
    with tempfile.TemporaryDirectory() as folder:  # readable by its owner only
        paths = []
        for name, location, content in (
            ("certificate", security.certificate_location, security.certificate_pem),
            ("key", security.key_location, security.key_pem),
        ):
            path = f"{folder}/{name}" if content else cast("str", location)
            if content:
                with open(path, "w", encoding="utf-8", opener=_private) as file:
                    file.write(content)
            paths.append(path)
        try:
            # A callable, so that Python never asks on a terminal for a password that was not given.
            context.load_cert_chain(
                paths[0], paths[1], password=lambda: security.key_password or ""
            )
        except (OSError, ssl.SSLError, ValueError) as error:
            raise ConfigurationError(
                "The client's certificate and key "
                f"({security.certificate_location or 'ssl.certificate.pem'}, "
                f"{security.key_location or 'ssl.key.pem'}) cannot be used: {_why(error)}. Both "
                "must be PEM and belong "
                "together, and ssl.key.password must fit an encrypted key."
            ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
