"""The how-to pages: their code runs or parses, and fits the settings of the same page."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import types
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pytest
import typer
import yaml
from confluent_kafka import KafkaException

from stream_dedup.__main__ import main
from stream_dedup.cli.app import program
from stream_dedup.domain.document import Message
from stream_dedup.inputs.decoder import DecodedDocument, Decoder
from stream_dedup.inputs.fields import scope_number
from stream_dedup.settings.layers import load_settings
from stream_dedup.settings.settings import Settings
from tests.inputs import registry_server

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "how-to"
PAGES = sorted(path.stem for path in FOLDER.glob("*.md"))
CRAWLERS = ["kcat", "redpanda-connect", "scrapy", "stormcrawler"]


def blocks(page: str, language: str) -> list[str]:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def settings(page: str) -> list[Settings]:
    found = []
    for block in blocks(page, "shell"):
        pairs = [line.removeprefix("export ").split("=", 1) for line in block.splitlines()]
        found.append(load_settings(environ=dict(pairs)))
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_block_can_be_read(page: str) -> None:
    assert page in CRAWLERS or not set(CRAWLERS) - set(PAGES)
    for block in blocks(page, "python"):
        compile(block, page, "exec")
    for block in blocks(page, "yaml"):
        assert isinstance(yaml.safe_load(block), dict)
    assert page not in CRAWLERS or settings(page)


def test_every_command_of_a_page_can_be_parsed() -> None:
    """Names, options and the number of arguments are valid; no command is run."""
    pages = [
        ROOT / "README.md",
        *(path for name in ("docs", "deploy", "topics") for path in (ROOT / name).rglob("*.md")),
    ]
    checked = 0
    for page in pages:
        for block in re.findall(
            r"```console\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL
        ):
            for line in block.splitlines():
                ours = re.search(r"(?:^\$ |-- )stream-dedup (.*?)(?: [|&>].*)?$", line)
                if ours is not None:
                    print(f"{page.relative_to(ROOT)}: {line}")
                    _parse(program(), shlex.split(ours[1]))
                    checked += 1
    assert checked > 100


def _parse(found: Any, words: list[str]) -> None:
    """Parse what follows `stream-dedup`, down to the last argument."""
    context = found.make_context("stream-dedup", list(words))
    while hasattr(found, "commands"):
        name, found, rest = found.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        with contextlib.suppress(typer.Exit):  # --help
            context = found.make_context(name, rest, parent=context)


def test_every_command_of_the_troubleshooting_page_exists() -> None:
    page = (FOLDER / "troubleshooting.md").read_text(encoding="utf-8")
    named = re.findall(r"`stream-dedup ([^`]+)`", page)

    assert len(named) > 8
    for line in named:
        words = [word for word in shlex.split(line) if word != "--help"]
        assert main([*words, "--help"]) == 0
        assert main([*words, "--no-such-option", "--help"]) == 2


def test_the_pipeline_of_scrapy_sends_what_the_filter_reads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page's settings decode what it sends; Kafka's answers are counted and logged."""
    sent: list[tuple[str, bytes, bytes]] = []
    answers: list[Callable[[str | None, object], None]] = []

    class Producer:
        def __init__(self, properties: dict[str, object]) -> None:
            assert properties["bootstrap.servers"] == "broker:1"
            self.full = True

        def produce(
            self,
            topic: str,
            value: bytes,
            key: bytes,
            on_delivery: Callable[[str | None, object], None],
        ) -> None:
            if self.full:
                self.full = False
                raise BufferError
            sent.append((topic, value, key))
            answers.append(on_delivery)

        def poll(self, _seconds: float) -> None: ...

        def flush(self, _seconds: float) -> int:
            answers[0](None, None)
            answers[0]("too large", None)
            return 0

    monkeypatch.setitem(
        sys.modules,
        "confluent_kafka",
        types.SimpleNamespace(Producer=Producer, KafkaException=KafkaException),
    )
    names: dict[str, Any] = {"__name__": "pipelines"}
    exec(blocks("scrapy", "python")[0], names)  # noqa: S102 - the page's own code
    stats: Counter[str] = Counter()
    counted = types.SimpleNamespace(inc_value=lambda name: stats.update([name]))
    crawler = types.SimpleNamespace(settings={"KAFKA_BROKERS": "broker:1"}, stats=counted)
    pipeline = names["DocumentsPipeline"].from_crawler(crawler)
    pipeline.open_spider()
    item = {"url": "https://a.example/ü", "title": "Ein Gruß", "text": "Grüße"}
    assert pipeline.process_item(item) is item
    pipeline.close_spider()

    ((topic, value, key),) = sent
    found = Decoder(settings("scrapy")[0]).decode(Message(topic, 0, 0, key, value, 5, []))
    assert topic == "documents"
    assert found == DecodedDocument(
        "Grüße", "https://a.example/ü".encode(), 5, 0, "a.example", "Ein Gruß"
    )
    assert stats == {"documents/written": 1, "documents/failed": 1}
    assert "https://a.example/ü was not written: too large" in caplog.text
    shown = [loaded.input_preset for loaded in settings("scrapy")]
    assert shown == ["raw", "scrapy-cluster", "scrapy-cluster"]


def test_an_avro_page_is_read_as_the_how_to_documents() -> None:
    (schema,) = (json.loads(block) for block in blocks("registry", "json"))
    (loaded,) = settings("registry")
    page = {
        "url": "u",
        "page": {"body": "one text"},
        "fetched": 1_700_000_000_123,
        "meta": {"lang": "de"},
    }
    raw = io.BytesIO(b"\0\0\0\0\x07")
    raw.seek(5)
    fastavro.schemaless_writer(raw, fastavro.parse_schema(schema), page)
    with registry_server.serving() as registry:
        registry.has(7, schema)
        decoder = Decoder(loaded.model_copy(update={"registry_url": registry.url}))

        found = decoder.decode(registry_server.message(raw.getvalue()))
        assert found == DecodedDocument("one text", b"u", 1_700_000_000_123, scope_number("de"))
