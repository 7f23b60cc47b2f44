"""Where settings come from, what is refused, and that the reference page agrees."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_dedup.domain.errors import ConfigurationError
from stream_dedup.domain.failpoints import VARIABLE as FAILPOINT_VARIABLE
from stream_dedup.domain.plan import PLANS
from stream_dedup.fingerprinting import PRESETS, Recipe
from stream_dedup.log.controls import Window
from stream_dedup.preflight.declaration import window_of
from stream_dedup.settings.layers import check_settings, load_settings
from stream_dedup.settings.page import GROUPS, reference_page
from stream_dedup.settings.properties import FROM_FILE_PROPERTIES, MASK, environment_name, is_secret
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import (
    format_duration,
    parse_duration,
    parse_size,
)

ROOT = Path(__file__).parent.parent


def problems(
    environ: dict[str, str] | None = None,
    overrides: dict[str, object] | None = None,
    file: Path | None = None,
) -> list[str]:
    return check_settings(overrides, file, environ or {}).problems


def env(**given: str) -> dict[str, str]:
    return {f"STREAM_DEDUP_{name}": value for name, value in given.items()}


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


class TestOrder:
    def test_flag_over_environment_over_file_over_default(self, tmp_path: Path) -> None:
        file = write(tmp_path, "s.toml", 'group = "file"\nhttp_port = 1\nlog_level = "error"\n')
        environ = env(GROUP="environment", HTTP_PORT="2", CONFIG=str(file))

        settings = load_settings({"group": "flag"}, environ=environ)

        found = (settings.group, settings.http_port, settings.log_level)
        assert found == ("flag", 2, "error")
        assert settings.kafka_bootstrap_servers == "localhost:9092"
        assert str(settings.origin("group")) == "flag --set group"
        assert str(settings.origin("http_port")) == "environment STREAM_DEDUP_HTTP_PORT"
        assert f"file log_level in {file}" == str(settings.origin("log_level"))
        assert str(settings.origin("kafka_bootstrap_servers")) == "default"
        argument_file = write(tmp_path, "mine.toml", 'group = "mine"')
        assert load_settings(file=argument_file, environ=env(CONFIG=str(file))).group == "mine", (
            "an argument is above the variable"
        )

    def test_the_plain_bootstrap_variable_is_honoured_below_ours(self) -> None:
        plain = {"KAFKA_BOOTSTRAP_SERVERS": "a:1"}
        both = {**plain, "STREAM_DEDUP_KAFKA_BOOTSTRAP_SERVERS": "b:2"}

        assert load_settings(environ=plain).kafka_bootstrap_servers == "a:1"
        assert load_settings(environ=both).kafka_bootstrap_servers == "b:2"
        found = str(load_settings(environ=plain).origin("kafka_bootstrap_servers"))
        assert found == "environment KAFKA_BOOTSTRAP_SERVERS"

    def test_an_empty_variable_counts_as_not_given(self, tmp_path: Path) -> None:
        """So do an empty file and a flag that was not given."""
        empty = write(tmp_path, "s.toml", "")
        assert load_settings({"group": None}, file=empty, environ=env(GROUP="g")).group == "g"
        assert load_settings(environ=env(GROUP="", KAFKA_SASL_PASSWORD="")) == Settings()

    def test_a_file_holds_settings_and_properties(self, tmp_path: Path) -> None:
        text = 'http_port = 9\n[kafka]\nsasl.username = "u"\n"linger.ms" = 5\n'
        found = load_settings(file=write(tmp_path, "a.toml", text), environ={})

        assert found.http_port == 9
        assert found.kafka == {"sasl.username": "u", "linger.ms": "5"}

    def test_settings_of_several_parts(self) -> None:
        hosts = "a.example, tools.example/dedup"
        found = load_settings({"http_allowed_hosts": hosts}, environ={})

        assert found.console_prefix == "/dedup"
        windows = [
            window_of(load_settings({"window": window}, environ={}))
            for window in ("48h", "2d, refresh", "none")
        ]
        assert windows == [Window(172_800_000, refresh) for refresh in (False, True)] + [None]

    def test_a_registry_s_login_is_read_from_a_file_and_never_shown(self, tmp_path: Path) -> None:
        """The address can contain user and password."""
        file = write(tmp_path, "address", "https://crawler:s3cret@registry.example:8081\n")
        found = load_settings(environ=env(REGISTRY_URL_FILE=str(file)))

        assert found.registry_url == "https://crawler:s3cret@registry.example:8081"
        assert "s3cret" not in repr(found)
        (shown,) = [setting.value for setting in found.shown() if setting.name == "registry_url"]
        assert shown == f"https://{MASK}@registry.example:8081"
        both = env(REGISTRY_URL="https://a", REGISTRY_URL_FILE=str(file))
        assert "remove one of them" in problems(both)[0]

    def test_prefix_and_mode_name_the_group_and_its_folder(self) -> None:
        """Two prefixes, or a shadow, share neither group nor folder; a given name is kept."""
        names = {
            "stream-dedup": {},
            "crawl.stream-dedup": {"topic_prefix": "crawl"},
            "news-stream-dedup": {"topic_prefix": "news-"},
            "stream-dedup-shadow": {"mode": "shadow"},
            "g": {"group": "g", "topic_prefix": "crawl"},
        }
        found = [load_settings(given, environ={}) for given in names.values()]

        assert [loaded.group for loaded in found] == list(names)
        assert [loaded.state_dir.name for loaded in found] == [loaded.group for loaded in found]
        assert [loaded.index_dir for loaded in found] == [
            loaded.state_dir / "index" for loaded in found
        ]
        assert len(problems({"STREAM_DEDUP_TOPIC_PREFIX": "ö"})) == 1
        assert len(problems({"STREAM_DEDUP_GROUP": "ö"})) == 1

    def test_topics_can_be_named_one_by_one(self) -> None:
        """A given name takes precedence over the prefix; no two topics may have the same name."""
        named = {"documents": "crawled_firehose", "dead_letters": "errors"}
        given = {"topic_prefix": "p", "mode": "shadow", **named}
        names = load_settings(given, environ={}).topic_names

        assert (names.documents, names.dead_letters) == ("crawled_firehose", "errors")
        assert (names.unique, names.fingerprints) == ("p.unique", "p.shadow.fingerprints")
        for name in ("a b", "..", "", "ö" * 3, "x" * 250):
            assert len(problems(overrides={"unique": name})) == 1
        for both in (
            {"documents": "a", "unique": "a"},
            {"duplicates": "fingerprints"},
            {"unique": "documents"},
        ):
            (problem,) = problems(overrides=both)
            assert "which is the name of another topic of this filter." in problem
        assert problems(overrides={"documents": "unique", "unique": "documents"}) == []


class TestKafkaProperties:
    def test_variables_follow_the_rule_of_the_apache_image(self) -> None:
        """One underscore is a dot, two are an underscore, three a hyphen."""
        environ = env(KAFKA_SSL_CA_LOCATION="/ca.pem", KAFKA_A__B="1", KAFKA_A___B="2")

        expected = {"ssl.ca.location": "/ca.pem", "a_b": "1", "a-b": "2"}
        assert load_settings(environ=environ).kafka == expected

    @given(st.from_regex(r"[a-z]{1,5}([._-][a-z0-9]{1,5}){0,4}", fullmatch=True))
    def test_every_property_has_a_variable_that_leads_back_to_it(self, prop: str) -> None:
        from stream_dedup.settings.properties import FIXED_PROPERTIES

        variable = environment_name(f"kafka.{prop}")
        if prop in FIXED_PROPERTIES or variable in {
            environment_name(name) for name in Settings.model_fields
        }:
            return

        assert load_settings(
            environ={variable: "x" if not prop.endswith((".ms", "bytes")) else "1"}
        ).kafka.keys() == {prop}

    def test_layers_are_merged_property_by_property(self, tmp_path: Path) -> None:
        text = "[kafka]\n" + "".join(f"{name} = 'file'\n" for name in ("a.b", "c.d", "e.f"))
        file = write(tmp_path, "s.toml", text)
        environ = env(KAFKA_A_B="environment", KAFKA_C_D="environment")

        settings = load_settings({"kafka.a.b": "flag"}, file, environ)

        assert settings.kafka == {"a.b": "flag", "c.d": "environment", "e.f": "file"}
        found = [settings.origin(f"kafka.{name}").source for name in ("a.b", "c.d", "e.f")]
        assert found == ["flag", "environment", "file"]

    def test_times_and_sizes_have_units_where_the_name_says_so(self) -> None:
        """Bare numbers and other properties pass as they are."""
        times = env(KAFKA_SOCKET_TIMEOUT_MS="15s", KAFKA_LINGER_MS="5", KAFKA_CLIENT_RACK="15s")
        wanted = {"socket.timeout.ms": "15000", "linger.ms": "5", "client.rack": "15s"}
        assert load_settings(environ=times).kafka == wanted
        sizes = env(KAFKA_FETCH_MAX_BYTES="64MiB", KAFKA_QUEUED_MAX_MESSAGES_KBYTES="1MiB")
        expected = {"fetch.max.bytes": str(64 * 2**20), "queued.max.messages.kbytes": "1024"}
        assert load_settings(environ=sizes).kafka == expected

    @pytest.mark.parametrize(
        "prop", ["group.id", "enable.auto.commit", "isolation.level", "auto.offset.reset", "acks"]
    )
    def test_properties_that_exactly_once_needs_cannot_be_set(self, prop: str) -> None:
        """A property that the product sets is an error in any source, with the reason."""
        (by_variable,) = problems({environment_name(f"kafka.{prop}"): "x"})
        (by_flag,) = problems(overrides={f"kafka.{prop}": "x"})

        assert f"the Kafka property {prop}, which cannot be changed" in by_variable
        assert f"the Kafka property {prop}, which cannot be changed" in by_flag

    def test_a_secret_from_a_file(self, tmp_path: Path) -> None:
        """`assertion.file` is a property of librdkafka: a path that is not read here."""
        secret = write(tmp_path, "password", " p a s s\n")
        from_file = env(KAFKA_SASL_PASSWORD_FILE=str(secret))

        more = env(KAFKA_SASL_OAUTHBEARER_ASSERTION_FILE="/token")
        settings = load_settings(environ=from_file | more)

        expected = {"sasl.password": " p a s s", "sasl.oauthbearer.assertion.file": "/token"}
        assert settings.kafka == expected
        assert str(secret) in str(settings.origin("kafka.sasl.password"))
        problem = problems(from_file | {"STREAM_DEDUP_KAFKA_SASL_PASSWORD": "x"})[0]
        assert "remove one of them" in problem
        missing = problems(env(KAFKA_SASL_PASSWORD_FILE=str(tmp_path / "none")))
        assert "cannot be read: no such file or directory" in missing[0]


class TestSecrets:
    def test_secrets_are_shown_nowhere(self) -> None:
        secrets = {
            environment_name(f"kafka.{prop}"): "s3cret"
            for prop in FROM_FILE_PROPERTIES
            if is_secret(prop)
        }

        settings = load_settings(environ=secrets)

        assert len(secrets) >= 9
        assert "s3cret" not in repr(settings)
        assert {
            setting.value for setting in settings.shown() if setting.name.startswith("kafka.")
        } == {MASK}


NO_PAIRS = ["broker", "http://broker:9092", "a:1,,b:2", "::1:9092", "good:9092, bad!:9092"]
NO_PAIRS += ["[broker]:9092,:::1", "http:9092:9092"]
NO_HOME = "must not begin with the home folder (~NAME) of an unknown user"
BROKERS = ["localhost:1", "10.0.0.1:65535", "[::1]:9092", "a_b.c-d.svc:9092 , kafka.:9092"]
BROKERS += ["kafka-0.kafka:9092", "[fe80::1%eth0]:1"]


class TestErrors:
    def test_all_errors_at_once(self, tmp_path: Path) -> None:
        """Errors of flags, environment and file are reported together, without secrets."""
        file = write(tmp_path, "s.toml", 'grup = "x"\nbatch_documents = 0\n')
        environ = env(HTTP_PORT="70000", NONSENSE="1", VALUE_FORMAT="jsn")
        environ |= env(KAFKA_SASL_PASSWORD="s3cret")  # noqa: S106 - a text

        with pytest.raises(ConfigurationError) as caught:
            load_settings({"plan": "blok"}, file, environ)

        text = str(caught.value)
        assert caught.value.exit_code == 78
        assert "for 6 reasons" in text
        assert "s3cret" not in text
        assert f"grup in {file} is not a setting; did you mean group?" in text
        assert f"batch_documents in {file} is 0, but must be at least 1." in text
        assert "STREAM_DEDUP_HTTP_PORT is '70000', but must be at most 65535." in text
        assert "STREAM_DEDUP_NONSENSE is not a setting" in text
        formats = "raw or json or confluent-json or avro"
        wanted = f"STREAM_DEDUP_VALUE_FORMAT is 'jsn', but must be {formats} (did you mean json?)."
        assert wanted in text
        assert "--set plan is 'blok', but there is no plan 'blok'; did you mean 'blocks'?" in text

    @pytest.mark.parametrize(
        ("variable", "nearest"),
        [
            ("STREAM_DEDUP_HTP_PORT", "STREAM_DEDUP_HTTP_PORT"),
            ("STREAM_DEDUP_http_port", "STREAM_DEDUP_HTTP_PORT"),
            ("stream_dedup_group", "STREAM_DEDUP_GROUP"),
            ("STREAM_DEDUP_KAKFA_SASL_PASSWORD", "STREAM_DEDUP_KAFKA_SASL_PASSWORD"),
            ("STREAM_DEDUP_CONFG", "STREAM_DEDUP_CONFIG"),
        ],
    )
    def test_an_unknown_variable_names_the_nearest(self, variable: str, nearest: str) -> None:
        assert problems({variable: "1"}) == [
            f"The environment variable {variable} is not a setting; did you mean {nearest}?"
        ]

    @pytest.mark.parametrize(
        ("name", "value", "must"),
        [
            ("HTTP_PORT", "abc", "must be a whole number"),
            ("HTTP_PORT", "80.5", "must be a whole number"),
            ("HTTP_PORT", "-1", "must be at least 0"),
            ("ALLOW_BYPASS", "perhaps", "must be true or false"),
            ("WINDOW", "30d,later", "must be a time such as 30d, or 30d,refresh"),
            ("WINDOW", "10ms", "must be at least 1 second and at most a thousand years"),
            ("SEARCH_KEEP", "10s", "must be at least 1 minute and at most 3660 days"),
            ("LANGUAGES", "thai", "must be same-han"),
            ("GROUP", "a b", "must be made of 1 to 200 letters"),
            ("WORKER_ID", "x" * 101, "must have at most 100 characters"),
            ("TOPIC_PREFIX", "a_b", "must consist of letters, digits, dots and hyphens"),
            ("TOPIC_PREFIX", ".a", "must begin with a letter or digit"),
            ("TOPIC_PREFIX", "x" * 249, "must leave topic names of at most 249 characters"),
            *(("KAFKA_BOOTSTRAP_SERVERS", brokers, "must be host:port") for brokers in NO_PAIRS),
            ("TEXT_FIELD", "a..b", "must be a dotted path"),
            ("FAIL_OPEN", "60", "must be a time with its unit"),
            ("FAIL_OPEN", "9" * 400 + "d", "must be a time"),
            ("HTTP_HOST", "a b", "must be a host name or an address"),
            ("KEY_FILE", "/does/not/exist", "must name a file that exists"),
            ("KEY_FILE", "/", "must name a file that exists"),
            ("STATE_DIR", "~nobody-of-that-name/x", NO_HOME),
            ("KAFKA_SOCKET_TIMEOUT_MS", "soon", "must be a time with its unit"),
            ("KAFKA_FETCH_MAX_BYTES", "lots", "must be a size such as 500MB"),
            ("MODE", "dry-run", "must be"),
            ("FAIL_OPEN", "10ms", "must be at least 1 second"),
            ("PLAN", "64:4:9:3", "must be a whole number from 0 to 3"),
            ("SIMILARITY", "8", "a similarity is written as a share from 0.01 to 1"),
        ],
    )
    def test_errors_of_wrong_values_name_valid_ones(self, name: str, value: str, must: str) -> None:
        environ = {f"STREAM_DEDUP_{name}": value, "STREAM_DEDUP_VALUE_FORMAT": "json"}

        (problem,) = problems(environ)

        assert problem.startswith(f"STREAM_DEDUP_{name} is '{value[:80]}")
        assert must in problem
        assert len(problem) < 500
        assert problem.endswith(".")

    def test_valid_addresses_are_accepted(self) -> None:
        given = [("KAFKA_BOOTSTRAP_SERVERS", address) for address in BROKERS]
        given += [("HTTP_HOST", address) for address in ("0.0.0.0", "::", "pod-1.svc")]  # noqa: S104 - a text, nothing is bound

        assert [
            (name, value) for name, value in given if problems({f"STREAM_DEDUP_{name}": value})
        ] == []

    @pytest.mark.parametrize(
        ("given", "group"),
        [("", "stream-dedup-shadow"), ("x", "x-shadow"), ("x-shadow", "x-shadow")],
    )
    def test_a_shadow_commits_for_a_separate_group(self, given: str, group: str) -> None:
        """A shadow never commits for the delivering group; a given suffix is not repeated."""
        assert load_settings(environ=env(MODE="shadow", GROUP=given)).group == group

    @pytest.mark.parametrize("field", ["text_field", "id_field", "time_field", "scope_field"])
    def test_a_field_of_raw_values_is_an_error(self, field: str) -> None:
        (problem,) = problems({f"STREAM_DEDUP_{field.upper()}": "a.b"})

        assert "needs STREAM_DEDUP_VALUE_FORMAT=json" in problem
        assert problems(env(VALUE_FORMAT="json", **{field.upper(): "a.b"})) == []

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("s.toml", "group = ", "cannot be parsed"),
            ("s.toml", "kafka = 5", "must be a table of Kafka properties"),
            ("s.toml", "[kafka]\na.b = [1]", "must be a text or a number"),
            ("s.toml", "[kafka]\n'A B' = 1", "is not a valid name"),
            ("s.toml", "http_port = true", "must be a whole number"),
            ("s.toml", "group = ['a']", "must be a text"),
            ("s.toml", "5 = 6", "5 in"),
            ("s.ini", "group=a", "must end in .toml"),
        ],
    )
    def test_invalid_files_are_refused(
        self, tmp_path: Path, name: str, text: str, message: str
    ) -> None:
        file = write(tmp_path, name, text)

        (problem,) = problems(file=file)

        assert message in problem
        assert str(file) in problem
        assert "\n" not in problem

    def test_files_that_cannot_be_read(self, tmp_path: Path) -> None:
        (tmp_path / "b.toml").write_bytes(b"\xff\xfe\x00")

        for path in (tmp_path / "none.toml", tmp_path, tmp_path / "b.toml"):
            (problem,) = problems(file=path)
            assert f"The configuration file {path} cannot be read" in problem

    def test_variables_of_kubernetes_and_of_other_code_are_ignored(
        self,
    ) -> None:
        """A Service called stream-dedup-index must not keep every pod from starting."""
        environ = env(
            INDEX_SERVICE_HOST="10.0.0.1", INDEX_SERVICE_PORT="8080", INDEX_SERVICE_PORT_HTTP="8080"
        )
        environ |= env(INDEX_PORT="tcp://10.0.0.1:8080", INDEX_PORT_8080_TCP="tcp://10.0.0.1:8080")
        environ |= env(INDEX_PORT_8080_TCP_PROTO="tcp", INDEX_PORT_8080_TCP_ADDR="10.0.0.1")
        environ |= env(KAFKA_PORT="tcp://10.0.0.2:9092", KAFKA_SERVICE_HOST="10.0.0.2")
        environ |= env(HTTP_PORT="tcp://10.0.0.3:80")
        # Read elsewhere.
        environ |= {FAILPOINT_VARIABLE: "worker.begin"} | env(CACHE_DIR="/var/cache/stream-dedup")

        assert load_settings(environ=environ) == Settings()

    def test_hostile_text_is_shown_harmless(self) -> None:
        (problem,) = problems({"STREAM_DEDUP_\x1b[31m\u202e" + "A" * 5000: "1"})

        assert problem.isprintable()
        assert len(problem) < 400

    @given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)), st.text(max_size=30)))
    def test_any_text_is_loaded_or_raises_a_configuration_error(
        self, values: dict[str, str]
    ) -> None:
        environ = {
            environment_name(name): value for name, value in values.items() if "\0" not in value
        }

        checked = check_settings(None, None, environ)
        settings, found = checked.settings, checked.problems

        assert settings is not None or found
        try:
            assert load_settings(environ=environ) == settings
        except ConfigurationError:
            assert found
        else:
            assert not found


class TestUnits:
    @pytest.mark.parametrize(
        ("text", "minutes"),
        [
            ("250ms", 0.25 / 60),
            ("30s", 0.5),
            ("15m", 15),
            ("12h", 720),
            ("30d", 43_200),
            ("2w", 20_160),
        ]
        + [("1h30m", 90), ("1.5h", 90), (" 15 M ", 15)]
        + [(text, None) for text in ("", "5", "m", "5x", "-5s", "5s5", "1e3s")],
    )
    def test_times(self, text: str, minutes: float | None) -> None:
        """A number and a unit, or several; a time without its unit, or with another, is refused."""
        if minutes is not None:
            assert parse_duration(text) == timedelta(minutes=minutes)
        else:
            with pytest.raises(ValueError, match="must be a time"):
                parse_duration(text)

    @given(st.integers(0, 10**14))
    def test_a_written_time_reads_back(self, milliseconds: int) -> None:
        value = timedelta(milliseconds=milliseconds)

        assert parse_duration(format_duration(value)) == value

    @pytest.mark.parametrize(
        ("text", "size"),
        [("500MB", 500 * 10**6), ("1GiB", 2**30), ("64 KiB", 2**16), ("65536", 65536), (7, 7)]
        + [(text, None) for text in ("", "MB", "-1MB", "1 parsec", "1e999")],
    )
    def test_sizes(self, text: object, size: int | None) -> None:
        """MB counts in thousands, MiB in 1024; a bare number is bytes; anything else is refused."""
        if size is not None:
            assert parse_size(text) == size
        else:
            with pytest.raises(ValueError, match="must be a size"):
                parse_size(text)


class TestReferencePage:
    def test_page_and_code_agree(self) -> None:
        page = reference_page()

        found = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
        assert found == page
        assert next(iter(GROUPS.values())) == next(iter(Settings.model_fields))
        for heading, first in GROUPS.items():
            before = page.partition(f'<a id="{first}"></a>')[0].rpartition("\n\n-")[0] + "\n"
            assert f"\n## {heading}\n" in before
        for name, field in Settings.model_fields.items():
            variable = "STREAM_DEDUP_KAFKA_<PROP>" if name == "kafka" else environment_name(name)
            assert (
                page.count(f'<a id="{name}"></a>')
                == page.count(f'\n- <a id="{name}"></a>`{variable}` (')
                == 1
            )
            assert len(field.description or "") > 40, name

    def test_the_recipes_that_can_be_set_exist(self) -> None:
        description = Settings.model_fields["recipe"].description or ""

        for preset in PRESETS:
            assert Recipe(preset).method.name == preset
            assert f"`{preset}`" in description
        assert load_settings({"recipe": " Chars:64 "}, environ={}).recipe == "chars:64"
        with pytest.raises(ConfigurationError, match="did you mean 'shingles'"):
            load_settings({"recipe": "shingels"}, environ={})

    @pytest.mark.parametrize(
        ("recipe", "plan"),
        [
            ("words", "bands"),
            ("shingles", "bands"),
            ("chars", "blocks"),
            ("vector", "blocks"),
            ("keywords", "classic"),
        ],
    )
    def test_the_default_plan_depends_on_the_recipe(self, recipe: str, plan: str) -> None:
        """With sketches, without, and with prints of 64 bits."""
        assert load_settings({"recipe": recipe}, None, {}).judging_plan == PLANS[plan]

    def test_a_similarity_changes_the_plan(self) -> None:
        """It can be written as a share or in per cent; it is shown as a share."""
        for text in ("0.8", "80%", ".80"):
            settings = load_settings({"plan": "bands"}, None, {"STREAM_DEDUP_SIMILARITY": text})
            found = (settings.similarity, settings.judging_plan.id)
            assert found == ("0.80", "128:4:0:36~20:80,70,85,97%:64")
        assert load_settings({"plan": "bands"}, None, {}).judging_plan == PLANS["bands"]
        with pytest.raises(
            ConfigurationError,
            match=r"SIMILARITY is '0[.]8', but the plan blocks compares no sketches",
        ):
            load_settings({"plan": "blocks"}, None, {"STREAM_DEDUP_SIMILARITY": "0.8"})


MISTYPED = "hunter2"
TOML = ["sasl.password = SECRET", 'sasl.password = "SECRET', '"sasl.password=SECRET" = 1']
TOML += ["sasl.password SECRET"]
TOML += [
    'sasl.password = "\\SECRET"',
    "sasl = {password = 1, SECRET = 1, SECRET = 2}",
    'sasl.password = ["SECRET"]',
]
TOML = [f"[kafka]\n{line}\n" for line in TOML]


class TestSecretsInFiles:
    """An error names the place and the kind of a mistake, never the text."""

    @pytest.mark.parametrize("text", TOML)
    def test_no_error_shows_what_may_be_a_password(self, tmp_path: Path, text: str) -> None:
        found = problems(file=write(tmp_path, "s.toml", text.replace("SECRET", MISTYPED)))

        assert found
        assert not any(MISTYPED in problem for problem in found), found
        assert all(problem.endswith((".", "?")) for problem in found), found

    def test_the_place_is_named(self, tmp_path: Path) -> None:
        toml = problems(
            file=write(tmp_path, "s.toml", f"group = 'a'\n[kafka]\nsasl.password = {MISTYPED}\n")
        )

        assert "s.toml cannot be parsed: line 3, column 17 is not valid." in toml[0]
