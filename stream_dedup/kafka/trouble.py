"""Why a broker cannot be spoken to: TLS and SASL failures as sentences that name the setting to change.

Invariants: certificate and host name are always verified, here too; no secret is ever part of a sentence. librdkafka gives
one text for every certificate that it does not accept, so the reason is asked for once more, by a TLS handshake of
Python's own that sends nothing.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

from confluent_kafka import KafkaError

from stream_dedup.ground.connection import address_and_reason
from stream_dedup.ground.errors import ConfigurationError
from stream_dedup.settings.settings import Settings

# One failed handshake may be a broker that is just starting; a client that was refused for good goes on trying.
_PATIENCE_SECONDS = 1.5
_HANDSHAKE_SECONDS = 3.0
_REFUSED = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED})


class Trouble:
    """What a client's error callback has heard."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._first: float | None = None
        self._refused: KafkaError | None = None
        self._last: KafkaError | None = None

    def hear(self, error: KafkaError) -> None:
        """Take note of an error; the client's error callback."""
        # A server that asks for a certificate says so only after the handshake: then librdkafka calls it a transport error.
        if error.code() in _REFUSED or _is_tls(error):
            self._refused = error
            self._first = self._first or time.monotonic()
        elif error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._last = error

    def check(self) -> None:
        """End a wait that is in vain.

        Raises:
            ConfigurationError: brokers have been refusing us for a while.
        """
        if self._first is not None and time.monotonic() - self._first > _PATIENCE_SECONDS:
            refusal = self.refusal()
            if refusal is not None:
                raise refusal

    def last(self) -> str:
        """Return why the last connection failed, as in `Connection refused`; empty if none has."""
        return "" if self._last is None else address_and_reason(self._last.str())[1]

    def refusal(self) -> ConfigurationError | None:
        """Return why the brokers refuse us, or None if none did."""
        if self._refused is None:
            return None
        servers = self._settings.kafka_bootstrap_servers
        if _is_tls(self._refused):
            return ConfigurationError(f"No TLS connection to {servers}: {self._why_tls()}")
        mechanism = self._settings.kafka.get("sasl.mechanism") or self._settings.kafka.get("sasl.mechanisms", "none")
        return ConfigurationError(
            f"Kafka at {servers} refused the user name, the password or the mechanism {mechanism} ({self._refused.str()}). "
            "Check STREAM_DEDUP_KAFKA_SASL_USERNAME, STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE and "
            "STREAM_DEDUP_KAFKA_SASL_MECHANISM."
        )

    def _why_tls(self) -> str:
        text = self._refused.str() if self._refused is not None else ""
        for server in self._settings.kafka_bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                why = self._shake_hands(host.strip("[]"), int(port))
            except ssl.SSLCertVerificationError as error:
                if "ostname" in error.verify_message or "IP address" in error.verify_message:
                    return (
                        f"the broker's certificate is not for {host} ({error.verify_message}). Name the broker in "
                        "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS as its certificate does, or give the broker a certificate "
                        "with this name; verification is not to be switched off."
                    )
                return (
                    f"the broker's certificate cannot be trusted ({error.verify_message}). Let "
                    "STREAM_DEDUP_KAFKA_SSL_CA_LOCATION name the file with the certificate of the CA that signed it."
                )
            except (OSError, ValueError) as error:
                why = str(error)
            if why:
                text = f"{text}; {why}"
        return (
            f"{text}. Is the port a TLS listener, and does STREAM_DEDUP_KAFKA_SECURITY_PROTOCOL (SSL or SASL_SSL) fit it? "
            "If it asks for a certificate of the client, set STREAM_DEDUP_KAFKA_SSL_CERTIFICATE_LOCATION and "
            "STREAM_DEDUP_KAFKA_SSL_KEY_LOCATION to one that the broker trusts."
        )

    def _shake_hands(self, host: str, port: int) -> str:
        given = self._settings.kafka
        context = ssl.create_default_context(cafile=given.get("ssl.ca.location"), cadata=given.get("ssl.ca.pem"))
        if given.get("ssl.certificate.location") and given.get("ssl.key.location"):
            with contextlib.suppress(OSError, ssl.SSLError):
                context.load_cert_chain(
                    given["ssl.certificate.location"], given["ssl.key.location"], given.get("ssl.key.password", "")
                )
        with (
            socket.create_connection((host, port), _HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            return ""


def _is_tls(error: KafkaError) -> bool:
    return error.code() == KafkaError._SSL or "SSL alert" in error.str()
