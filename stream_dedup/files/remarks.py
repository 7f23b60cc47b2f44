"""Collect and print the notes of a command on the files that it read: each note once, with a remedy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from stream_dedup.domain.document import DeadLetter, Reason
from stream_dedup.domain.printable import counted, printable
from stream_dedup.domain.relations import Relation
from stream_dedup.domain.sketch import as_text
from stream_dedup.domain.terminal import note
from stream_dedup.files.offline import (
    Judged,
    RepeatedIds,
    exceeds_one_percent,
    short_texts_note,
)
from stream_dedup.files.rows import named_id
from stream_dedup.fingerprinting import Content
from stream_dedup.inputs.charset import REPLACED, looks_like_markup
from stream_dedup.inputs.fields import MISSING, field_at
from stream_dedup.inputs.sources import DAMAGED_FILE, HOW_TO_READ, RawDocument, not_read
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings

_FIELDS_NAMED = 20
_SIMILARITY_USUAL_MIN = 50
_DIGITS = re.compile(r"0x[0-9a-f]+|\d+")


@dataclass(slots=True)
class Remarks:
    """Notes on documents that a command read with these settings. `close` prints them."""

    settings: Settings
    non_page_records: Counter[str] = field(default_factory=Counter)
    repeated_ids: RepeatedIds = field(default_factory=RepeatedIds)
    _counts: Counter[str] = field(default_factory=Counter)
    _firsts: dict[str, str] = field(default_factory=dict)
    _most_similar: Judged | None = None
    _sibling_similarity: float = 0.0
    _sentences: dict[str, str] = field(default_factory=dict)
    _last_file_with_text: str = ""
    _file_without_text: str = ""
    _optional_fields: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self._optional_fields = optional_fields(self.settings)

    def add_refused(self, raw: RawDocument, letter: DeadLetter) -> None:
        """Add a document that cannot be judged. If no document of a file has a text, a note lists the
        fields of its first document.
        """
        file = _file_of(raw)
        if (
            letter.error_class == "MissingField"
            and raw.fields
            and file != self._last_file_with_text
            and "fields" not in self._sentences
        ):
            self._file_without_text = file
            names = [str(name) for name in raw.fields]
            more = f" and {len(names) - _FIELDS_NAMED:,} more" if len(names) > _FIELDS_NAMED else ""
            what = content_kind(self.settings)
            self._sentences["fields"] = (
                f"{raw.name} has the fields {', '.join(names[:_FIELDS_NAMED])}{more}. Name the field "
                f"with the {what}: STREAM_DEDUP_TEXT_FIELD (--{what}-field, --set text_field=)."
            )

    def add_document(self, raw: RawDocument, text: Content, site: str) -> None:
        """Add a document that can be judged. `site`: empty if unknown."""
        self._last_file_with_text = _file_of(raw)
        if self._last_file_with_text == self._file_without_text:
            self._file_without_text = ""
            del self._sentences["fields"]
        if (
            isinstance(text, str)
            and REPLACED in text
            and not raw.is_page
            and raw.form != "warc"
            and not is_utf8(raw.raw)
        ):
            self._count_note("no UTF-8", raw)
        self._counts["rows"] += raw.form == "jsonl"
        self._counts["without a site"] += raw.form == "jsonl" and not site
        for what, path in self._optional_fields.items():
            self._counts[f"{what} fields"] += field_at(raw.fields, path) is not MISSING
        if raw.form == "jsonl" and self.settings.id_field:
            self._counts["documents"] += 1
            self._counts["without an id"] += named_id(raw, self.settings.id_field) is None
        self.repeated_ids.add_document(self._last_file_with_text)
        is_extracted = raw.is_page or (self.settings.text_is == "html" and raw.form != "warc")
        self._counts["texts"] += 1
        if not is_extracted and isinstance(text, str) and looks_like_markup(text):
            self._count_note("markup", raw)

    def _count_note(self, what: str, raw: RawDocument) -> None:
        self._counts[what] += 1
        self._firsts.setdefault(what, raw.name)

    def count_verdicts(self, verdicts: Iterator[Judged]) -> Iterator[Judged]:
        """Yield the verdicts; count repeated ids, siblings, and texts that are too short to compare."""
        for judged in verdicts:
            self._counts["judged"] += 1
            self.repeated_ids.count(judged)
            is_from_earlier_run = judged.reason is Reason.UNCHANGED and judged.kept_number is None
            self._counts["known"] += is_from_earlier_run
            self._counts["too short"] += judged.reason is Reason.TOO_SHORT
            if judged.sibling is not None:
                self._counts["siblings"] += 1
                if judged.sibling.similarity > self._sibling_similarity:
                    self._most_similar, self._sibling_similarity = judged, judged.sibling.similarity
            yield judged

    def count_if_all_known(self) -> int:
        """Return the number of documents if all are unchanged since an earlier run, else 0."""
        known = self._counts["known"]
        return known if known == self._counts["judged"] else 0

    def merge(self, other: Remarks) -> None:
        """Add the notes of another process or an earlier run."""
        self.non_page_records += other.non_page_records
        self._counts += other._counts
        self._firsts = {**other._firsts, **self._firsts}
        self._sentences = {**self._sentences, **other._sentences, **self._sentences}

    def close(self) -> None:
        """Print the notes."""
        counts = self._counts
        for sentence in self._sentences.values():
            note(sentence)
        if exceeds_one_percent(counts["markup"], counts["texts"]):
            note(
                f"{counts['markup']:,} of {counted(counts['texts'], 'document')} look like web pages, but "
                "are judged with their tags, which pages of one site share; the first is "
                f"{self._firsts['markup']}. If the texts are pages, set STREAM_DEDUP_TEXT_IS=html "
                "(--set text_is=html) to judge their main text."
            )
        if sentence := self.repeated_ids.note():
            note(sentence)
        if counts["no UTF-8"]:
            note(
                "Bytes that are not UTF-8 were judged as U+FFFD, in "
                f"{counted(counts['no UTF-8'], 'document')}; the first is "
                f"{self._firsts['no UTF-8']}."
            )
        if counts["without an id"]:
            note(
                f"{counts['without an id']:,} of {counts['documents']:,} documents have no "
                f"{self.settings.id_field!r} "
                "(STREAM_DEDUP_ID_FIELD, --id-field); their id, url or position in the file is used "
                "instead."
            )
        settings = self.settings
        self._note_settings()
        if (
            counts["without a site"] > counts["rows"] // 2
            and counts["rows"] >= 20
            and settings.similarity_unsure is None
            and settings.judging_plan.needs_sketch
        ):
            note(
                f"{counts['without a site']:,} of {counts['rows']:,} documents have no known web site, so they "
                f"are copies at a similarity of {_threshold_text(settings, Relation.UNKNOWN_SITE)} or more "
                f"(STREAM_DEDUP_SIMILARITY_UNSURE; set it to silence this note). Name the field "
                "with the site or the URL: --site-field (STREAM_DEDUP_SITE_FIELD)."
            )
        if (page := self._most_similar) is not None and page.sibling is not None:
            note(
                f"Kept only because of site or title (on different sites they would be copies): "
                f"{counted(counts['siblings'], 'document')}; the most similar is {_printable_id(page.id)}, "
                f"similarity {page.sibling.similarity:.2f} to {_printable_id(page.sibling.id)}. Pages of one site "
                f"are copies at a similarity of {_threshold_text(self.settings, Relation.SAME_TITLE)} or more "
                f"with the same title, "
                f"{_threshold_text(self.settings, Relation.OTHER_TITLE)} or more with different titles, else "
                f"{_threshold_text(self.settings, Relation.UNKNOWN_TITLE)} or more."
            )
        floor = recipe_of(self.settings).floor
        if sentence := short_texts_note(counts["too short"], counts["judged"], floor):
            note(sentence)
        report_non_page_records(self.non_page_records)

    def _note_settings(self) -> None:
        """Print notes on settings that have no effect."""
        counts, plan = self._counts, self.settings.judging_plan
        for what, path in self._optional_fields.items():
            if counts["rows"] and not counts[f"{what} fields"]:
                note(
                    f"No row of JSONL, Parquet or Arrow has the field {path!r} with the {what}: "
                    f"correct --{what}-field (STREAM_DEDUP_{what.upper()}_FIELD)."
                )
        if plan.bands and counts["judged"] and plan.similarity < _SIMILARITY_USUAL_MIN:
            note(
                f"The plan {plan.name} finds few pairs below similarity 0.6, so "
                f"{as_text(plan.similarity)} (--similarity, STREAM_DEDUP_SIMILARITY) finds hardly "
                "more copies than 0.5 does."
            )


def _printable_id(identifier: bytes) -> str:
    return printable(identifier.decode("utf-8", "replace")) or "(no id)"


def _threshold_text(settings: Settings, relation: Relation) -> str:
    return as_text(settings.judging_plan.similarities[relation])


def optional_fields(settings: Settings) -> dict[str, str]:
    """Return the paths of the fields `site` and `title`, if a user set them."""
    default = type(settings).model_fields["title_field"].default
    paths = {"site": settings.site_field, "title": settings.title_field}
    return {what: path for what, path in paths.items() if path and path != default}


def content_kind(settings: Settings) -> str:
    """Return the kind of judged content: "text" or "vector"."""
    return "vector" if recipe_of(settings).method.takes_vectors else "text"


def _file_of(raw: RawDocument) -> str:
    return raw.name.rpartition(":")[0] or raw.name


def is_utf8(raw: bytes) -> bool:
    """Return whether bytes are valid UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@dataclass(slots=True)
class UnreadableDocuments:
    """Counts and reports documents that cannot be read. `count`: their number; `damaged`: the number
    of damaged files or parts of files. Only the first `reported_max` different problems are printed
    (0: every document).
    """

    reported_max: int
    count: int = 0
    damaged: int = 0
    _unread_count: int = 0
    _problems: set[str] = field(default_factory=set)
    _unreported: int = 0

    def count_unread(self, unread_names: Sequence[str]) -> None:
        """Count the files that are not read, and print the first names."""
        self._unread_count += len(unread_names)
        if unread_names:
            # A name that ends with ")" contains its reason.
            has_unknown = not all(name.endswith(")") for name in unread_names)
            note(not_read(unread_names) + (f" {HOW_TO_READ}" if has_unknown else ""))

    def count_letter(self, letter: DeadLetter) -> None:
        """Count a dead letter without printing it."""
        self.count += letter.count
        self.damaged += letter.error_class == DAMAGED_FILE

    def report(self, location: str, letter: DeadLetter) -> None:
        """Count a dead letter, and print it with its location, unless the same problem or
        `reported_max` problems were printed before.
        """
        self.count_letter(letter)
        problem = _DIGITS.sub(
            "", letter.message
        )  # the same problem in another line differs only in numbers
        if not self.reported_max or (
            problem not in self._problems and len(self._problems) < self.reported_max
        ):
            self._problems.add(problem)
            message = letter.message
            note(message if message.startswith(location) else f"{location}: {message}")
        else:
            self._unreported += letter.count

    def close(self) -> None:
        """Print the number of documents that were not printed."""
        if self._unreported:
            note(f"... and {self._unreported:,} more that cannot be read.")

    def exit_code(self, read: int, *, is_strict: bool, skips_damaged: bool = False) -> int:
        """Return 1 if a file is damaged (unless `skips_damaged`), or if no document can be read; else 0.

        `is_strict`: also return 1 if any document or file cannot be read. `read`: the number of
        documents that were read.
        """
        is_failure = (self.damaged and not skips_damaged) or (self._unread_count and is_strict)
        return 1 if is_failure or (self.count and (is_strict or not read)) else 0


def report_non_page_records(counts: Counter[str]) -> None:
    """Print the numbers of WARC records that are not pages, by type."""
    if counts:
        parts = ", ".join(f"{count:,} {kind}" for kind, count in counts.most_common())
        note(f"Skipped records of WARC files that are not pages: {parts}.")
