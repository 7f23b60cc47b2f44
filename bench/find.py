"""Search the full-text engine of `run search` for clues, and compare it with a plain scan of the
same texts: `bench find`.

Texts are written to a file, and from there to the engine as the role does it, with as many commits
as while it catches up. Clues are pieces of these texts, cut at word boundaries: unchanged, with one
word replaced by a word of another text, and with one word left out. For some clues the scan is
measured too; it looks at every text, already split into words.

Only `Finder.find` is timed: splitting the clue into words, the engine, and the snippets of the
documents found, whose texts are read from the file instead of from Kafka.

Invariants: the engine must return every answer that the scan returns, document by document, or the
run reports a complaint; equal options make equal texts and clues.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.find_texts import LANGUAGES, generate_texts
from bench.path_around import machine
from stream_dedup.domain.errors import InputError
from stream_dedup.fingerprinting import Languages
from stream_dedup.fingerprinting.normalise import normalise
from stream_dedup.search.facts import EngineCheckpoint, TextFacts
from stream_dedup.search.finding import Finder
from stream_dedup.search.forgotten import key_of
from stream_dedup.search.query import parse_query, words_of
from stream_dedup.search.role import COMMIT_DOCUMENTS
from stream_dedup.search.texts import TextIndex

TOKENS: Final = (8, 20, 60)
CHANGES: Final = ("whole", "one changed", "one missing")
LISTED: Final = 20
_TELL_DOCUMENTS: Final = 100_000

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FindOptions:
    """What to measure. `clues`: the number of clues for each language, length and change; `scans`:
    the total number of clues for which the scan is measured.
    """

    documents: int = 100_000
    size_bytes: int = 1000
    clues: int = 100
    scans: int = 9
    seed: int = 1
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class AskedClue:
    """A clue, and the number of the text from which it was cut."""

    language: str
    tokens: int
    change: str
    text: str
    source: int


@dataclass(slots=True)
class CellFigures:
    """Figures of the clues of one language, length and change. `first`: the number of clues whose
    text was among the first results; `listed`: among any results.
    """

    language: str
    tokens: int
    change: str
    first: int = 0
    listed: int = 0
    milliseconds: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return counts, shares and times by name."""
        asked = len(self.milliseconds)
        return {
            "language": self.language,
            "tokens": self.tokens,
            "change": self.change,
            "asked": asked,
            "recall": round(self.first / asked, 4),
            "listed": round(self.listed / asked, 4),
            "median_ms": round(statistics.median(self.milliseconds), 2),
            "p99_ms": round(float(np.quantile(self.milliseconds, 0.99, method="higher")), 2),
        }


@dataclass(slots=True)
class FindReport:
    """All figures. `scans`: for each clue that was given to both, (tokens, milliseconds of the
    scan, milliseconds of the engine).
    """

    options: FindOptions
    machine: Mapping[str, Any]
    bytes_texts: int = 0
    bytes_engine: int = 0
    segments: int = 0
    load_seconds: float = 0.0
    load_cpu_seconds: float = 0.0
    ask_cpu_seconds: float = 0.0
    cells: list[CellFigures] = field(default_factory=list)
    scans: list[tuple[int, float, float]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    @property
    def milliseconds(self) -> list[float]:
        """The time of the engine for each clue."""
        return [duration for cell in self.cells for duration in cell.milliseconds]

    def as_json(self) -> dict[str, Any]:
        """Return everything, for `--json`."""
        count, about = self.options.documents, self.machine
        return {
            "documents": count,
            "seed": self.options.seed,
            "machine": f"{about['cores']} cores of {about['processor']}, load before {about['load_before']}",
            "bytes_of_text": round(self.bytes_texts / count),
            "bytes_in_engine": round(self.bytes_engine / count),
            "segments": self.segments,
            "loaded_per_second": round(count / self.load_seconds),
            "load_cpu_us": round(1e6 * self.load_cpu_seconds / count),
            "ask_cpu_ms": round(1000 * self.ask_cpu_seconds / len(self.milliseconds), 2),
            "median_ms": round(statistics.median(self.milliseconds), 2),
            "p99_ms": round(float(np.quantile(self.milliseconds, 0.99, method="higher")), 2),
            "cells": [cell.as_json() for cell in self.cells],
            "scans": [
                {
                    "tokens": tokens,
                    "asked": len(milliseconds),
                    "scan_ms": round(statistics.median(scan for scan, _ in milliseconds), 1),
                    "engine_ms": round(statistics.median(engine for _, engine in milliseconds), 2),
                }
                for tokens in TOKENS
                if (
                    milliseconds := [
                        (scan, engine) for length, scan, engine in self.scans if length == tokens
                    ]
                )
            ],
        }


class TextFile:
    """Texts on disk by number, each as it is and split into words. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._texts = (folder / "texts").open("w+b")
        self._words = (folder / "words").open("w+b")
        self._ends = [0]
        self.languages: list[str] = []

    def __enter__(self) -> TextFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._texts.close()
        self._words.close()

    def write(self, texts: Iterable[tuple[str, str]], languages: Languages) -> None:
        """Write texts with their language."""
        for code, text in texts:
            data = text.encode()
            self._texts.write(data)
            self._words.write(f" {' '.join(words_of(text, languages))} \n".encode())
            self._ends.append(self._ends[-1] + len(data))
            self.languages.append(code)
        self._texts.flush()
        self._words.flush()

    @property
    def size_bytes(self) -> int:
        """The size of all texts."""
        return self._ends[-1]

    def text(self, number: int) -> str:
        """Return the text of this number."""
        begin, end = self._ends[number : number + 2]
        return os.pread(self._texts.fileno(), end - begin, begin).decode()

    def at(self, places: Iterable[str]) -> dict[str, str]:
        """Return the texts at these places by place, as a reader of Kafka does."""
        return {place: self.text(number_of(place)) for place in places}

    def scan(self, pairs: Sequence[bytes], needed: int) -> dict[int, int]:
        """Scan all texts; return the number of `pairs` in each text that contains at least `needed` of
        them, by the number of the text.
        """
        self._words.seek(0)
        found = {}
        for number, line in enumerate(self._words):
            pairs_found = sum(map(line.__contains__, pairs))
            if pairs_found >= needed:
                found[number] = pairs_found
        return found


def number_of(place: str) -> int:
    """Return the number of the text at a place."""
    return int(place.rpartition("@")[2])


def run_find(options: FindOptions, say: Say) -> FindReport:
    """Measure.

    Raises:
        InputError: the texts cannot be had, or are too short for clues.
        StreamDedupError: the engine failed.
    """
    languages = Languages()
    with (
        tempfile.TemporaryDirectory(dir=options.folder, prefix="bench-find-") as name,
        TextFile(Path(name)) as texts,
    ):
        report = FindReport(options, machine())
        say(f"writing {options.documents:,} texts")
        texts.write(generate_texts(options.seed, options.size_bytes, options.documents), languages)
        report.bytes_texts = texts.size_bytes
        engine = TextIndex(Path(name) / "engine")
        try:
            _load_texts(engine, texts, languages, report, say)
            _ask_clues(engine, texts, languages, report, say)
        finally:
            engine.close()
    return report


def _load_texts(
    engine: TextIndex, texts: TextFile, languages: Languages, report: FindReport, say: Say
) -> None:
    began, cpu_began = time.monotonic(), time.process_time()
    for number in range(report.options.documents):
        text = texts.text(number)
        identifier = f"https://host-{number % 9973}.example/{number}"
        facts = TextFacts(
            f"unique-0@{number}",
            identifier,
            number,
            len(text),
            "unique",
            "new",
            log_offset=number // 500,
        )
        engine.add_text(facts, words_of(text, languages), key_of(identifier.encode()))
        if engine.added == COMMIT_DOCUMENTS:
            engine.commit(EngineCheckpoint({}, {}))
        if (number + 1) % _TELL_DOCUMENTS == 0:
            say(f"{number + 1:,} of {report.options.documents:,} documents are in the engine")
    engine.commit(EngineCheckpoint({}, {}))
    report.load_seconds = time.monotonic() - began
    engine.finish_merging()
    report.load_cpu_seconds = time.process_time() - cpu_began
    report.bytes_engine, report.segments = engine.size_bytes, engine.segments


def _ask_clues(
    engine: TextIndex, texts: TextFile, languages: Languages, report: FindReport, say: Say
) -> None:
    finder = Finder(engine, languages, texts.at)
    options = report.options
    clues = list(_make_clues(texts, languages, options))
    cells = {key: CellFigures(*key) for key in product(LANGUAGES, TOKENS, CHANGES)}
    # The first question of each language reads dictionaries; as a role that runs has done long ago.
    for code in LANGUAGES:
        finder.find(next(asked.text for asked in clues if asked.language == code), LISTED)
    say(f"asking {len(clues):,} clues")
    order = random.Random(options.seed)  # noqa: S311 - no secrets
    order.shuffle(clues)
    times: dict[AskedClue, float] = {}
    cpu_began = time.process_time()
    for asked in clues:
        began = time.monotonic()
        found = finder.find(asked.text, LISTED)
        times[asked] = 1000 * (time.monotonic() - began)
        cell = cells[asked.language, asked.tokens, asked.change]
        cell.milliseconds.append(times[asked])
        cell.first += any(
            number_of(document.output_position) == asked.source for document in found.documents
        )
    report.ask_cpu_seconds = time.process_time() - cpu_began
    for asked in clues:
        cells[asked.language, asked.tokens, asked.change].listed += _is_listed(
            texts.text(asked.source), asked.text, languages
        )
    report.cells = list(cells.values())
    for asked in _select_clues(clues, options.scans):
        say(f"a scan for {asked.tokens} words in {asked.language}, {asked.change}")
        began = time.monotonic()
        clue = parse_query(asked.text, languages)
        wanted = [f" {' '.join(pair)} ".encode() for pair in clue.pairs]
        pairs_found = texts.scan(wanted, clue.needed_pairs())
        report.scans.append((asked.tokens, 1000 * (time.monotonic() - began), times[asked]))
        shares = {number: count / len(clue.pairs) for number, count in pairs_found.items()}
        answer = {
            number_of(document.facts.output_position): document.share
            for document in engine.find(clue, LISTED)
        }
        best = sorted(shares.values(), reverse=True)[:LISTED]
        if sorted(answer.values(), reverse=True) != best or any(
            shares.get(number) != share for number, share in answer.items()
        ):
            report.complaints.append(
                f"The engine's answer is not the scan's, for the clue {asked.text!r:.200}."
            )


def _is_listed(text: str, clue: str, languages: Languages) -> bool:
    """Return whether a text contains enough pairs of a clue to be listed, by counting them."""
    wanted = parse_query(clue, languages)
    words = f" {' '.join(words_of(text, languages))} "
    return sum(f" {' '.join(pair)} " in words for pair in wanted.pairs) >= wanted.needed_pairs()


def _select_clues(clues: Sequence[AskedClue], count: int) -> Iterator[AskedClue]:
    """Yield `count` clues, equally many of each length; languages and changes alternate."""
    kinds = [
        (LANGUAGES[turn % 3], tokens, CHANGES[(turn + turn // 3) % 3])
        for turn in range(9)
        for tokens in TOKENS
    ]
    for kind in kinds[:count]:
        yield next(clue for clue in clues if (clue.language, clue.tokens, clue.change) == kind)


def _make_clues(texts: TextFile, languages: Languages, options: FindOptions) -> Iterator[AskedClue]:
    """Yield the clues: the same piece of a text whole, changed and with a word missing."""
    dice = np.random.default_rng([options.seed, 7])
    for code in LANGUAGES:
        numbers = [
            number for number, text_language in enumerate(texts.languages) if text_language == code
        ]
        for tokens in TOKENS:
            made = tries = 0
            while made < options.clues:
                tries += 1
                if tries > 20 * options.clues + 100:
                    raise InputError(
                        f"The texts in {code!r} are too short for clues of {tokens} words: give a "
                        "larger --size."
                    )
                source, other = (numbers[place] for place in dice.integers(0, len(numbers), 2))
                piece = _cut_piece(texts.text(source), tokens, languages, dice.random())
                foreign = _cut_piece(texts.text(other), 1, languages, dice.random())
                if piece is None or foreign is None:
                    continue
                made += 1
                before, word, behind = piece[1 + int(dice.random() * (tokens - 2))]
                whole = before + word + behind
                for change, text in zip(
                    CHANGES, (whole, before + foreign[0][1] + behind, before + behind), strict=True
                ):
                    yield AskedClue(code, tokens, change, text, source)


def _cut_piece(
    text: str, tokens: int, languages: Languages, where: float
) -> list[tuple[str, str, str]] | None:
    """Return a piece of a text that is so many words long, parted at each of its words: before it,
    it, behind it.
    """
    data = normalise(text).encode()
    spans = languages.spans(data)
    if len(spans) < tokens:
        return None
    first = int(where * (len(spans) - tokens + 1))
    spans_of_piece = spans[first : first + tokens]
    begin, end = spans_of_piece[0][0], spans_of_piece[-1][1]
    return [
        (data[begin:start].decode(), data[start:stop].decode(), data[stop:end].decode())
        for start, stop in spans_of_piece
    ]
