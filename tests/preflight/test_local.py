"""Checks that need no cluster: clients, machine, recipe, volume."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stream_dedup.domain.extras import install_command
from stream_dedup.domain.plan import PLANS
from stream_dedup.domain.topics import TopicNames
from stream_dedup.fingerprinting import Recipe
from stream_dedup.index.index import LogIndex
from stream_dedup.index.storage.store import RocksStore
from stream_dedup.kafka.client import property_problems
from stream_dedup.preflight import machine, volume
from stream_dedup.preflight.clients import check_clients
from stream_dedup.preflight.declaration import check_declaration, check_key, check_recipe
from stream_dedup.preflight.finding import CheckFinding, CheckState
from stream_dedup.preflight.machine import check_machine
from stream_dedup.preflight.volume import check_volume
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from tests.preflight.test_cluster import existing


def get_finding(findings: Sequence[CheckFinding], check: str) -> CheckFinding:
    (finding,) = (finding for finding in findings if finding.check == check)
    return finding


PLAIN = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
TLS = {"security.protocol": "ssl"}


class TestClients:
    def test_every_wrong_property_is_named_at_once_with_the_nearest(self) -> None:
        environ = {
            "STREAM_DEDUP_KAFKA_SECURTY_PROTOCOL": "ssl",
            "STREAM_DEDUP_KAFKA_SASL_MECHANSM": "PLAIN",
            "STREAM_DEDUP_KAFKA_SOCKET_KEEPALIVE_ENABLE": "perhaps",
            "STREAM_DEDUP_KAFKA_SASL_PASWORD": "s3cret",
        }

        problems = property_problems(load_settings(environ=environ))

        text = "\n".join(problems)
        assert len(problems) == 4
        assert (
            "STREAM_DEDUP_KAFKA_SECURTY_PROTOCOL would be the Kafka property securty.protocol, "
            "which does not exist; " in text
        )
        assert "did you mean security.protocol?" in text
        assert "did you mean sasl.password?" in text
        assert "STREAM_DEDUP_KAFKA_SOCKET_KEEPALIVE_ENABLE is 'perhaps'" in text
        assert "s3cret" not in text

    def test_missing_properties_are_reported(self) -> None:
        """Properties that are well one by one, and cannot be together, are refused before a role
        begins."""
        settings = Settings(
            kafka={"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN"}
        )

        findings = check_clients(settings, TopicNames(), None)

        refusals = [finding for finding in findings if finding.check == "properties"]
        assert {finding.state for finding in refusals} == {CheckState.REFUSED}
        assert all("sasl.username" in finding.sentence for finding in refusals)

    @pytest.mark.parametrize(
        ("properties", "state", "expected"),
        [
            ({}, "ok", "accept all records"),
            ({"message.max.bytes": "100000"}, "refused", "could not be written"),
            ({"message.max.bytes": "500000"}, "warning", "less than unique accepts"),
            (
                {"receive.message.max.bytes": "1000000"},
                "refused",
                "but documents can contain records of 1,048,588",
            ),
        ],
    )
    def test_record_sizes_of_clients(
        self, properties: dict[str, str], state: str, expected: str
    ) -> None:
        """Whatever a topic takes, the clients must be able to write and read."""
        topics = {
            name: existing(1, 1, {"max.message.bytes": "1048588"})
            for name in ("documents", "unique")
        }

        finding = [
            problem
            for problem in check_clients(Settings(kafka=properties), TopicNames(), topics)
            if problem.check == "client sizes"
        ]

        assert [(problem.state.value, expected in problem.sentence) for problem in finding] == [
            (state, True)
        ]

    @pytest.mark.parametrize(
        ("brokers", "properties", "state", "expected"),
        [
            ("127.0.0.1:1,[::1]:2,localhost:3", {}, "ok", "do not leave this machine"),
            ("kafka:9092", {}, "warning", "unencrypted."),
            (
                "kafka:9092",
                {"security.protocol": "SASL_PLAINTEXT"} | PLAIN,
                "warning",
                "and the password",
            ),
            ("kafka:9093", TLS, "ok", "verified"),
            (
                *("k:1", TLS | {"ssl.endpoint.identification.algorithm": "none"}),
                *("warning", "host name"),
            ),
            (
                *("k:1", TLS | {"enable.ssl.certificate.verification": "false"}),
                *("warning", "certificate"),
            ),
        ],
    )
    def test_encryption(
        self, brokers: str, properties: dict[str, str], state: str, expected: str
    ) -> None:
        """Clear text passes only on this machine; unverified certificates are a warning."""
        findings = check_clients(
            Settings(kafka_bootstrap_servers=brokers, kafka=properties), TopicNames(), None
        )

        assert get_finding(findings, "encryption").state.value == state
        assert expected in get_finding(findings, "encryption").sentence


class TestMachine:
    def test_too_few_open_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A limit under which RocksDB would fail one day is a warning now."""
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 512))

        assert (
            get_finding(check_machine(Settings(), "worker"), "open files").state
            is CheckState.WARNING
        )

    def test_a_full_disk_and_an_impossible_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Little room is a warning, because nothing is lost by it; a folder that cannot be written
        is a refusal."""
        monkeypatch.setattr(machine, "_FREE_BYTES_MIN", 1 << 62)
        (tmp_path / "file").write_text("")

        findings = check_machine(Settings(state_dir=tmp_path / "file"), None)

        assert get_finding(findings, "disk").state is CheckState.WARNING
        assert (
            get_finding(findings, "index folder").state
            is get_finding(findings, "state folder").state
            is CheckState.REFUSED
        )
        assert "STREAM_DEDUP_STATE_DIR" in get_finding(findings, "index folder").sentence

    def test_the_folder_of_a_search(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Can it be written, and is there room beside what it holds; without its extra that is not
        asked, and why is said."""
        settings = Settings(state_dir=tmp_path)
        findings = check_machine(settings, None)
        assert get_finding(findings, "search folder").state is CheckState.OK
        assert "search disk" not in {finding.check for finding in findings}, (
            "nobody has begun one here"
        )

        settings.search_dir.mkdir()
        assert get_finding(check_machine(settings, None), "search disk").state is CheckState.OK
        monkeypatch.setattr(machine, "_FREE_BYTES_MIN", 1 << 62)
        assert (
            "merges segments" in get_finding(check_machine(settings, None), "search disk").sentence
        )
        assert not {finding.check for finding in check_machine(settings, "index")} & {
            "search folder",
            "search disk",
        }

        monkeypatch.setitem(sys.modules, "tantivy", None)
        search_folder = get_finding(check_machine(settings, None), "search folder")
        assert search_folder.state is CheckState.NOT_CHECKED
        assert install_command("search") in search_folder.sentence

    @pytest.mark.parametrize("place", ["/proc/nope", "/dev/null/below", "x" * 300])
    def test_an_invalid_folder_is_reported(self, place: str) -> None:
        """The checks return findings for any folder name and raise no exception."""
        settings = Settings(state_dir=Path(place))

        assert {finding.check for finding in check_machine(settings, None)} >= {
            "index folder",
            "state folder",
            "disk",
        }
        assert (
            get_finding(volume.check_volume(settings, None, lambda: None), "volume").state
            is CheckState.NOT_CHECKED
        )

    def test_unreachable_probes_are_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A loopback address is a warning in a pod, but not on a laptop."""
        at_home = get_finding(check_machine(Settings(), "index"), "probes").state
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

        assert at_home is CheckState.OK
        assert get_finding(check_machine(Settings(), "index"), "probes").state is CheckState.WARNING
        assert (
            get_finding(check_machine(Settings(http_host="::"), "index"), "probes").state
            is CheckState.OK
        )


class TestRecipe:
    def test_the_public_key_is_a_warning_and_an_unreadable_key_a_refusal(
        self, tmp_path: Path
    ) -> None:
        """With a key of one's own there is nothing to say; without a recipe nothing else is said of
        it."""
        (tmp_path / "key").write_text("short")
        assert [finding.state for finding in check_key(Recipe())] == [CheckState.WARNING]
        assert [finding.state for finding in check_key(Recipe(key=bytes(range(32))))] == [
            CheckState.OK
        ]

        recipe, findings = check_recipe(Settings(key_file=tmp_path / "key"))

        assert (recipe, [finding.state for finding in findings]) == (None, [CheckState.REFUSED])

    def test_the_declaration_must_be_this_worker_s(self) -> None:
        """Another recipe or group is refused, another plan is a warning, and a log of somebody else
        is an error."""
        recipe, settings = Recipe(), Settings()
        good = {"recipe": recipe.id, "group": "stream-dedup", "plan": PLANS["bands"].to_fields()}

        def states(**changed: object) -> list[CheckState]:
            return [
                finding.state
                for finding in check_declaration(settings, recipe, {**good, **changed})
            ]

        assert states() == [CheckState.OK]
        assert states(recipe="words:x", group="other") == [CheckState.REFUSED, CheckState.REFUSED]
        assert states(plan=PLANS["classic"].to_fields()) == [CheckState.WARNING]
        assert states(window={"length_ms": 60_000, "refresh": False}) == [CheckState.WARNING]
        assert states(count_copies=True) == [CheckState.WARNING]
        assert states(better="newest") == [CheckState.WARNING]
        assert states(log_ids="digest") == [CheckState.REFUSED]
        stricter = Settings(plan="bands", similarity="0.8")
        bands = {**good, "plan": PLANS["bands"].to_fields()}
        assert [finding.state for finding in check_declaration(stricter, recipe, bands)] == [
            CheckState.WARNING
        ]


def test_a_volume_is_compared_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its log and offset must fit, its representatives the memory; none is not called well, and a
    damaged one is refused."""
    index = LogIndex(RocksStore(tmp_path / "v" / "index"))
    index.bind("cluster/topic")
    index.flush()
    index.close()

    def states(log: str | None, end: int | None, name: str = "v") -> list[CheckState]:
        return [
            finding.state
            for finding in check_volume(Settings(state_dir=tmp_path / name), log, lambda: end)
        ]

    assert states("cluster/topic", 0) == states(None, None) == [CheckState.OK, CheckState.OK]
    assert states("cluster/other", 5)[0] is CheckState.REFUSED
    assert states("cluster/topic", -1)[0] is CheckState.REFUSED
    monkeypatch.setattr(volume, "limit_of_group", lambda: 1000)
    assert states("cluster/topic", 0)[1] is CheckState.WARNING
    assert states(None, None, "none") == [CheckState.NOT_CHECKED]
    (tmp_path / "v" / "index" / "CURRENT").write_text("nonsense\n")
    assert states(None, None) == [CheckState.REFUSED]
