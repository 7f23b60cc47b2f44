"""TLS, SASL and ACLs on a real broker: what roles need, and their errors without it."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from stream_dedup.broker import LocalBroker
from stream_dedup.broker.process import HOST
from stream_dedup.domain.errors import BrokerError, ConfigurationError, StreamDedupError
from stream_dedup.kafka import Admin, admin
from stream_dedup.serving import http_client
from stream_dedup.serving.ports import free_ports
from stream_dedup.settings.settings import Settings
from tests.broker.certificates import Authority
from tests.broker.harness import Filter, Role, run_in_process
from tests.broker.nodes import with_listeners
from tests.broker.test_first_start import recreate_topic
from tests.broker.test_main_path import LONG
from tests.waiting import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.thorough]

USERS = Path(__file__).parent.parent.parent / "topics" / "users"
PASSWORD = "correct-horse-battery"  # noqa: S105 - of a broker that lives for this test

# (kind of resource, its name, its pattern, operation)
Acl = tuple[str, str, str, str]


def acls_of(user: str) -> list[Acl]:
    """Return the ACLs of a file in `topics/users`, one for each operation."""
    declared = yaml.safe_load((USERS / f"{user}.yaml").read_text())
    return [
        (
            acl["resource"]["type"],
            acl["resource"]["name"],
            acl["resource"]["patternType"],
            operation,
        )
        for acl in declared["spec"]["authorization"]["acls"]
        for operation in acl["operations"]
    ]


def binding(user: str, acl: Acl) -> AclBinding:
    kinds = {
        "topic": ResourceType.TOPIC,
        "group": ResourceType.GROUP,
        "transactionalId": ResourceType.TRANSACTIONAL_ID,
    }
    operations = {
        "DescribeConfigs": AclOperation.DESCRIBE_CONFIGS,
        "AlterConfigs": AclOperation.ALTER_CONFIGS,
    }
    kind, name, pattern, operation = acl
    return AclBinding(
        kinds[kind],
        name,
        ResourcePatternType.PREFIXED if pattern == "prefix" else ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operations.get(operation) or AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )


@dataclass
class Secured:
    """A broker with an authoriser; only the super-user's listener does not authenticate."""

    crawl: Filter
    authority: Authority
    other_authority: Authority
    scram_port: int
    mutual_port: int
    admin: AdminClient

    def grant(self, user: str, acls: list[Acl]) -> None:
        for future in self.admin.create_acls([binding(user, acl) for acl in acls]).values():
            future.result(20)

    def by_password(self, user: str, **changed: str) -> dict[str, str]:
        properties = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.authority.path),
        }
        return properties | {name.replace("_", "."): value for name, value in changed.items()}

    def by_certificate(self, user: str) -> dict[str, str]:
        chain, key = self.authority.sign(user)
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.path),
            "ssl.certificate.location": str(chain),
            "ssl.key.location": str(key),
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    authority, other = Authority(folder, "ca"), Authority(folder, "other-ca")
    chain, key = authority.sign("broker", HOST)
    keystore = folder / "broker.pem"
    keystore.write_bytes(key.read_bytes() + chain.read_bytes())
    port, controller_port, scram_port, mutual_port = free_ports(4)
    listeners = {"SASL_SSL": (scram_port, scram_port), "SSL": (mutual_port, mutual_port)}
    settings = with_listeners(port, controller_port, listeners) | {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        "sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.path),
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^CN=(.*)$/$1/",
    }
    with LocalBroker(folder / "kafka", port=port, settings=settings) as broker:
        crawl = Filter(broker.bootstrap, folder, partitions=2, prefix="", value_format="json")
        crawl.create_topics()
        secured_broker = Secured(
            crawl,
            authority,
            other,
            scram_port,
            mutual_port,
            AdminClient({"bootstrap.servers": broker.bootstrap}),
        )
        users = [
            f"stream-dedup-{name}" for name in ("worker", "index", "insights", "search", "crawler")
        ]
        for user in users:
            secured_broker.grant(user, acls_of(user.removeprefix("stream-dedup-")))
        scram = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        created = secured_broker.admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion(user, scram, PASSWORD.encode()) for user in users]
        )
        for future in created.values():
            future.result(20)
        try:
            yield secured_broker
        finally:
            crawl.stop()


def environment(port: int, properties: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a role with client properties and a password file."""
    password = folder / "password"
    password.write_text(PASSWORD)
    found = {
        f"STREAM_DEDUP_KAFKA_{name.upper().replace('.', '_')}": value
        for name, value in properties.items()
    }
    if found.pop("STREAM_DEDUP_KAFKA_SASL_PASSWORD", None):
        found["STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE"] = str(password)
    return found | {"STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": f"{HOST}:{port}"}


def document(text: str) -> bytes:
    return json.dumps({"text": text}).encode()


def test_the_roles_work_with_exactly_the_acls_in_topics_users(
    secured: Secured, tmp_path: Path
) -> None:
    """With certificate or password: all records leave, and no log shows the password."""
    crawl = secured.crawl
    connection = environment(
        secured.mutual_port, secured.by_certificate("stream-dedup-index"), tmp_path
    )
    index = crawl.start("index", **connection)
    connection = environment(
        secured.scram_port, secured.by_password("stream-dedup-worker"), tmp_path
    )
    worker = crawl.start("worker", STREAM_DEDUP_COUNT_COPIES="true", **connection)
    as_crawler = secured.by_password("stream-dedup-crawler") | {
        "bootstrap.servers": f"{HOST}:{secured.scram_port}"
    }
    values = [document(LONG), document(LONG), b"{broken", document("another text of some words")]
    crawl.produce(
        ((number // 2, b"k%d" % (number // 2), value, []) for number, value in enumerate(values)),
        **as_crawler,
    )
    outcome = crawl.outcome()
    assert outcome.reasons() == {"new": 1, "unchanged": 1, "dead:decode": 1, "too-short": 1}
    assert worker.stop() == 0
    assert index.process.poll() is None
    assert PASSWORD not in index.log + worker.log


def test_insights_reads_and_writes_over_tls_with_its_acls(secured: Secured, tmp_path: Path) -> None:
    """Faust gets the same properties, with a password and with a certificate."""
    crawl = secured.crawl
    by_password = environment(
        secured.scram_port, secured.by_password("stream-dedup-insights"), tmp_path
    )
    by_certificate = environment(
        secured.mutual_port, secured.by_certificate("stream-dedup-insights"), tmp_path
    )
    for number, connection in enumerate((by_password, by_certificate), start=1):
        page = (0, b"https://a.example/1", b"a page", [("dedup.reason", b"new")])
        crawl.produce([page] * 3, topic=crawl.names.unique)
        role = crawl.start("insights", **connection)

        def has_counted(wanted: int = 3 * number, role: Role = role) -> bool:
            assert role.process.poll() is None, role.log
            found = [
                message
                for message in crawl.read(crawl.names.host_signals)
                if message.key == b"a.example"
            ]
            return bool(found) and json.loads(found[-1].value or b"")["documents"] == wanted

        wait_until(has_counted, f"the signals count {3 * number} documents", 60)
        assert role.stop() == 0
        assert PASSWORD not in role.log


def test_search_works_with_exactly_its_acls(secured: Secured, tmp_path: Path) -> None:
    """It is ready, finds delivered documents, and fills the console's pages."""
    crawl = secured.crawl
    if not any(role.name == "index" and role.process.poll() is None for role in crawl.roles):
        crawl.start("index")
    # Nobody reads what it would count at hosts, and the console says so of what waits.
    worker = crawl.start("worker", STREAM_DEDUP_COUNT_COPIES="true")
    text = " ".join(f"harbour{number}" for number in range(60))
    crawl.produce((0, b"%d" % index, document(text), []) for index in range(2))
    connection = environment(
        secured.scram_port, secured.by_password("stream-dedup-search"), tmp_path
    )
    search = crawl.start(
        "search",
        STREAM_DEDUP_STATE_DIR=str(tmp_path / "state"),
        STREAM_DEDUP_HTTP_PORT="0",
        **connection,
    )
    base = search.address()

    def get_json(path: str) -> Any:
        assert search.process.poll() is None, search.log
        return json.loads(http_client.ask(base, path, 20, 1 << 20)[1])

    def find_results() -> list[Any]:
        return list(get_json("/v1/find?q=harbour17+harbour18+harbour19").get("documents", []))

    wait_until(lambda: len(find_results()) == 2, "both are found", 60)
    assert get_json("/readyz")["ready"]
    assert all(result["snippet"] for result in find_results())
    (copy,) = (result for result in find_results() if result["verdict"] == "duplicate")
    decided = get_json(f"/decision.json?position={copy['output_position']}")
    assert (
        decided["notices"],
        decided["record"]["missing_reason"],
        decided["kept"]["missing_reason"],
    ) == ([], "", "")
    wait_until(lambda: get_json("/now.json")["lag"] == 0, "the lag is known", 60)
    # An earlier test may have run insights, which does not run now.
    wait_until(
        lambda: all("has no member" in notice for notice in get_json("/hosts.json")["notices"]),
        "the hosts are read",
        60,
    )
    assert all(remark["level"] != "not checked" for remark in get_json("/now.json")["remarks"])
    assert search.stop() == 0
    assert worker.stop() == 0
    assert PASSWORD not in search.log


def settings_of(secured: Secured, user: str) -> Settings:
    return Settings(
        kafka_bootstrap_servers=f"{HOST}:{secured.mutual_port}",
        kafka=secured.by_certificate(user),
        group=secured.crawl.settings.group,
        worker_id="lacking",
        value_format="json",
        http_port=0,
        state_dir=secured.crawl.folder / user,
        count_copies=True,  # whichever test begins the log
    )


def run_role(name: str, settings: Settings) -> StreamDedupError | None:
    """Run a role in this process until it ends, at most for a while; return what ended it."""
    stop = threading.Event()
    timer = threading.Timer(30, stop.set)
    timer.start()
    try:
        return run_in_process(name, settings, stop)
    finally:
        timer.cancel()


# Read and Write imply Describe, and the index does not use DescribeConfigs yet: neither can be
# missing.
NEEDED = [
    (user, acl)
    for user in ("worker", "index")
    for acl in acls_of(user)
    if acl[3] != "Describe" and (user, acl[3]) != ("index", "DescribeConfigs")
]


@pytest.mark.parametrize(
    ("user", "lacking"),
    NEEDED,
    ids=lambda value: value if isinstance(value, str) else f"{value[3]}-{value[1]}",
)
def test_a_missing_acl_is_named(secured: Secured, user: str, lacking: Acl) -> None:
    """Without one of its ACLs a role ends; the sentence names operation and resource."""
    crawl = secured.crawl
    for role in crawl.roles:
        if role.name == "worker" and role.process.poll() is None:
            role.kill()  # of a failed test: it would own the partition
    if not any(role.name == "index" and role.process.poll() is None for role in crawl.roles):
        crawl.start("index")
    kind, name, _, operation = lacking
    if (name, operation) == ("begun", "Write"):
        recreate_topic(crawl, name)  # nothing is written there once all partitions are begun
    limited_user = f"lacks-{user}-{operation}-{name}".lower()
    secured.grant(limited_user, [acl for acl in acls_of(user) if acl != lacking])
    dice = random.Random(
        limited_user
    )  # no text is near another case's: the first of each must leave as unique
    text = " ".join(f"{dice.getrandbits(32):x}" for _ in range(60))
    crawl.produce(
        (0, b"%d" % number, value, [])
        for number, value in enumerate([document(text), document(text), b"{"])
    )

    ended = run_role(user, settings_of(secured, limited_user))

    assert isinstance(ended, BrokerError), ended
    assert f"{operation} " in str(ended)
    assert f"on {kind} {name}" in str(ended)
    assert "topics/users" in str(ended)


def read_refusal(settings: Settings) -> str:
    with pytest.raises(StreamDedupError) as caught:
        Admin(settings).topic_ids(["documents"])
    assert isinstance(caught.value, ConfigurationError), caught.value
    return str(caught.value)


def test_a_broker_without_a_trusted_certificate_is_refused(secured: Secured) -> None:
    """A certificate of another CA or host: the sentence names the settings."""
    properties = secured.by_password(
        "stream-dedup-worker", ssl_ca_location=str(secured.other_authority.path)
    )
    sentence = read_refusal(
        Settings(kafka_bootstrap_servers=f"{HOST}:{secured.scram_port}", kafka=properties)
    )
    assert "certificate verify failed" in sentence
    assert "STREAM_DEDUP_KAFKA_SSL_CA_LOCATION" in sentence

    properties = secured.by_password("stream-dedup-worker")
    sentence = read_refusal(
        Settings(kafka_bootstrap_servers=f"localhost:{secured.scram_port}", kafka=properties)
    )
    assert "certificate verify failed" in sentence
    assert "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS" in sentence


def test_refused_credentials_are_reported_with_the_settings(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = secured.by_password("stream-dedup-worker", sasl_password="wrong-guess")  # noqa: S106 - it is wrong
    sentence = read_refusal(
        Settings(kafka_bootstrap_servers=f"{HOST}:{secured.scram_port}", kafka=properties)
    )
    assert "STREAM_DEDUP_KAFKA_SASL_PASSWORD_FILE" in sentence
    assert "wrong-guess" not in sentence

    properties = {"security.protocol": "SSL", "ssl.ca.location": str(secured.authority.path)}
    sentence = read_refusal(
        Settings(kafka_bootstrap_servers=f"{HOST}:{secured.mutual_port}", kafka=properties)
    )
    assert "STREAM_DEDUP_KAFKA_SSL_CERTIFICATE_LOCATION" in sentence

    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 3.0)
    with pytest.raises(BrokerError) as caught:
        Admin(Settings(kafka_bootstrap_servers=f"{HOST}:{secured.scram_port}")).topic_ids(
            ["documents"]
        )
    assert "TLS and SASL settings" in str(caught.value)
