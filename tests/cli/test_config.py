"""`config check`, `config show` and `doctor`: check settings before they are used."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from stream_dedup.kafka import admin
from stream_dedup.settings.page import reference_page
from tests.cli.running import Run


def test_config_check_finds_no_problem_in_the_defaults(run: Run) -> None:
    assert run("config", "check").code == 0
    assert run("config", "check", "--json").json == {"ok": True, "problems": []}


def test_config_check_finds_bad_key_files_and_unknown_properties(run: Run, tmp_path: Path) -> None:
    """A key that is too short and a property that librdkafka does not know are found without a
    broker, both at once."""
    key = tmp_path / "key"
    key.write_text("short")

    ended = run(
        "config",
        "check",
        "--json",
        "--set",
        f"key_file={key}",
        "--set",
        "kafka.sasl.pasword=s3cret",
    )

    found = ended.json
    assert (ended.code, found["ok"]) == (78, False)
    assert any(str(key) in problem for problem in found["problems"])
    assert any("sasl.pasword" in problem for problem in found["problems"])
    assert "s3cret" not in ended.out + ended.err


def test_config_check_reports_bad_properties_and_bad_values(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All at once: values, names, and each Kafka property, whichever of them would end the reading
    of settings."""
    monkeypatch.setenv("STREAM_DEDUP_HTTP_PORT", "99999")
    monkeypatch.setenv("STREAM_DEDUP_NONSENSE", "1")
    monkeypatch.setenv("STREAM_DEDUP_KAFKA_SASL_PASWORD", "s3cret")

    ended = run(
        "config", "check", "--set", "kafka.linger.ms=-7", "--set", "kafka.security.protocol=TSL"
    )
    monkeypatch.delenv("STREAM_DEDUP_HTTP_PORT")
    without_value = run("config", "check")

    parts = [
        "HTTP_PORT is",
        "NONSENSE is not",
        "kafka.linger.ms is",
        "kafka.security.protocol is",
        "did you mean sasl.password?",
    ]
    assert [part for part in parts if part not in ended.err] == []
    assert len(ended.err.splitlines()) == 5
    assert len(without_value.err.splitlines()) == 2
    assert "s3cret" not in ended.err + without_value.err


def test_config_show_masks_secrets_and_names_origins(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('group = "crawl"\n')
    monkeypatch.setenv("STREAM_DEDUP_KAFKA_SASL_PASSWORD", "s3cret")
    arguments = ["config", "show", "--config", file, "-b", "broker:9092"]

    as_text = run(*arguments, "--origin")
    as_json = run(*arguments, "--origin", "--json").json

    assert as_json["group"] == {"value": "crawl", "source": "file", "where": f"group in {file}"}
    expected = {"value": "broker:9092", "source": "flag", "where": "--bootstrap-servers"}
    assert as_json["kafka_bootstrap_servers"] == expected
    assert as_json["kafka.sasl.password"]["value"] == "******"
    assert as_json["kafka.sasl.password"]["where"] == "STREAM_DEDUP_KAFKA_SASL_PASSWORD"
    assert as_json["http_port"] == {"value": "8080", "source": "default", "where": ""}
    assert "flag --bootstrap-servers" in as_text.out
    assert "s3cret" not in as_text.out


def test_config_show_reference_prints_the_page(run: Run) -> None:
    assert run("config", "show", "--reference").out == reference_page()


# -- doctor without Kafka: every check still prints a line


def test_doctor_without_kafka_runs_other_checks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks that need the cluster are reported as not checked, never as ok."""
    monkeypatch.setattr(admin, "_TIMEOUT_SECONDS", 1.0)
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        ended = run("doctor", "--json", "-b", f"127.0.0.1:{bound_socket.getsockname()[1]}")

    states = {result["check"]: result["state"] for result in ended.json["checks"]}
    assert ended.code == 78
    assert states["brokers"] == "refused"
    found = {states[check] for check in ("topics", "log", "offsets", "declaration", "volume")}
    assert found == {"not checked"}
    assert states["prints"] == states["properties"] == "ok"


def test_doctor_refuses_unknown_properties_before_it_connects(run: Run) -> None:
    """All at once, in a table that ends with the counts."""
    ended = run("doctor", "--set", "kafka.securty.protocol=ssl", "--set", "kafka.client.rak=a")

    assert ended.code == 78
    assert "did you mean security.protocol?" in ended.out
    assert "did you mean client.rack?" in ended.out
    assert "2 refused" in ended.out.splitlines()[-1]
