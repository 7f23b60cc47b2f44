"""TLS and SASL properties of librdkafka, as aiokafka takes them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.kafka.client import base_config
from stream_dedup.kafka.security import Security, security_of
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.properties import MASK, environment_name

SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "worker",
    "sasl.password": "s3cret",
}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem (which is also the client's certificate), an encrypted key.pem and a
    plain.pem."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("pki")
    for command in (
        (
            "openssl req -x509 -newkey ed25519 -keyout key.pem -out ca.pem -days 2 -subj /CN=localhost "
            "-passout pass:open"
        ),
        "openssl pkey -in key.pem -passin pass:open -out plain.pem",
    ):
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=30)
    return folder


def test_nothing_set_is_a_plain_connection() -> None:
    assert security_of({}) == Security()


@pytest.mark.parametrize("name", ["sasl.mechanism", "sasl.mechanisms"])
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_sasl_with_a_name_and_a_password(name: str, mechanism: str) -> None:
    """Mechanism by either of librdkafka's names, in either case; user and password as they are."""
    properties = {
        "security.protocol": "sasl_plaintext",
        name: mechanism.lower(),
        "sasl.username": "u",
        "sasl.password": " p",
    }

    assert security_of(properties) == Security(mechanism, "u", " p")


def test_kerberos_passes_the_service_s_name() -> None:
    """librdkafka's default mechanism is GSSAPI, which needs no password here."""
    found = security_of(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.kerberos.service.name": "broker"}
    )

    assert found == Security("GSSAPI", kerberos_service="broker")


def test_tls_verifies_certificate_and_host_by_default(pki: Path) -> None:
    """The defaults are librdkafka's; host names and then certificates can be left unchecked, never
    the other way round."""
    tls = {"security.protocol": "ssl", "ssl.ca.location": str(pki / "ca.pem")}

    strict = security_of(tls).ssl_context
    no_host = security_of({**tls, "ssl.endpoint.identification.algorithm": "none"}).ssl_context
    nothing = security_of({**tls, "enable.ssl.certificate.verification": "false"}).ssl_context

    assert strict is not None
    assert no_host is not None
    assert nothing is not None
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (no_host.verify_mode, no_host.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert (nothing.verify_mode, nothing.check_hostname) == (ssl.CERT_NONE, False)
    assert [certificate["subject"] for certificate in strict.get_ca_certs()] == [
        ((("commonName", "localhost"),),)
    ]


def test_mutual_tls_from_files(pki: Path) -> None:
    by_file = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(pki / "ca.pem"),
        "ssl.certificate.location": str(pki / "ca.pem"),
        "ssl.key.location": str(pki / "key.pem"),
        "ssl.key.password": "open",
    }
    plain = {
        **by_file,
        "ssl.ca.pem": (pki / "ca.pem").read_text(),
        "ssl.key.location": str(pki / "plain.pem"),
    }

    for properties in (by_file, plain):
        assert isinstance(security_of(properties).ssl_context, ssl.SSLContext)
    with pytest.raises(ConfigurationError, match=r"ssl\.key\.password must decrypt") as caught:
        security_of({**by_file, "ssl.key.password": "wr0ng"})
    assert "wr0ng" not in str(caught.value)


TLS = {"security.protocol": "SSL"}
KEYSTORE = "name PEM files: ssl.certificate.location"


@pytest.mark.parametrize(
    ("properties", "pattern"),
    [
        ({"security.protocol": "TLS"}, "security.protocol is 'TLS', but must be PLAINTEXT or SSL"),
        ({**SCRAM, "sasl.mechanism": "OAUTHBEARER"}, "sasl.mechanism is 'OAUTHBEARER'"),
        ({**SCRAM, "sasl.password": ""}, "sasl.password is missing, and SCRAM-SHA-512 needs it"),
        (TLS | {"ssl.key.location": "/k"}, "ssl.certificate.location is missing"),
        (TLS | {"ssl.certificate.location": "/c"}, "ssl.key.location is missing"),
        (TLS | {"ssl.keystore.location": "/k.p12"}, KEYSTORE),
        (TLS | {"ssl.ca.location": "/none"}, "/none.* cannot be used: No such file"),
    ],
)
def test_properties_that_aiokafka_does_not_support_are_refused(
    properties: dict[str, str], pattern: str
) -> None:
    """Each error names the property and has exit code 78."""
    with pytest.raises(ConfigurationError, match=pattern) as caught:
        security_of(properties)

    assert caught.value.exit_code == 78
    assert "s3cret" not in str(caught.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        security_of(
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "ssl.key.location": "/k"}
        )

    assert len(str(caught.value).splitlines()) == 3


def test_both_clients_get_the_same_from_the_environment(tmp_path: Path, pki: Path) -> None:
    """librdkafka and aiokafka get the same values from one set of variables; `config show` masks
    them."""
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    files = {
        "ssl.ca.location": "ca.pem",
        "ssl.certificate.location": "ca.pem",
        "ssl.key.location": "key.pem",
    }
    environ = {
        environment_name(f"kafka.{name}"): value
        for name, value in SCRAM.items()
        if name != "sasl.password"
    }
    environ |= {environment_name(f"kafka.{name}"): str(pki / file) for name, file in files.items()}
    environ |= {
        "STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE": str(secret),
        "STREAM_DEDUP_KAFKA_SSL_KEY_PASSWORD": "open",
    }

    settings = load_settings(environ=environ)
    librdkafka_config = base_config(settings, "x", {}, {})
    aiokafka_security = security_of(settings.kafka)

    found = {name: librdkafka_config[name] for name in (*SCRAM, *files)}
    assert found == {**SCRAM, **{name: str(pki / file) for name, file in files.items()}}
    assert (
        aiokafka_security.mechanism,
        aiokafka_security.username,
        aiokafka_security.password,
    ) == ("SCRAM-SHA-512", "worker", "s3cret")
    shown = {setting.name: setting for setting in settings.shown()}
    assert shown["kafka.sasl.password"].value == shown["kafka.ssl.key.password"].value == MASK
    assert str(secret) in str(shown["kafka.sasl.password"].origin)
    assert not any(
        word in f"{settings!r}{setting}"
        for word in ("s3cret", "'open'")
        for setting in shown.values()
    )
    assert "s3cret" not in repr(security_of(settings.kafka))
