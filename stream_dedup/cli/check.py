"""`check`: the duplicates in a file, found by the same decoding, fingerprints and index, without Kafka."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stream_dedup.cli.sources import RawDocument, find_files, key_of, read_documents
from stream_dedup.ground.document import DeadLetter, Message, Reason, Verdict
from stream_dedup.ground.errors import InvariantError
from stream_dedup.ground.plan import parse as parse_plan
from stream_dedup.ground.terminal import console, note, print_json, print_table, progress
from stream_dedup.inputs.decoder import Decoder, Document
from stream_dedup.local.offline import Judged, OfflineDocument, judge_documents
from stream_dedup.settings.recipe import recipe_of
from stream_dedup.settings.settings import Settings, load_settings


@dataclass(slots=True)
class _Result:
    """What is shown at the end; of the duplicates only as many as are listed."""

    rows_max: int
    reasons: Counter[Reason] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    rows: list[list[str]] = field(default_factory=list)

    def add(self, where: str, judged: Judged) -> None:
        self.reasons[judged.reason] += 1
        self.verdicts[judged.verdict.value] += 1
        if judged.verdict is Verdict.DUPLICATE and (not self.rows_max or len(self.rows) < self.rows_max):
            of = (judged.of_id or b"").decode("utf-8", "replace") or f"number {judged.of_number}"
            name = judged.id.decode("utf-8", "replace")
            self.rows.append([name or where, judged.reason.label, str(judged.distance), of, where])


def check_documents(
    overrides: Mapping[str, object], config: Path | None, target: str, form: str, rows_max: int, *, as_json: bool
) -> int:
    """Judge every document of `target` in order, print duplicates and totals (or one JSON object each); return 0.

    Raises:
        InputError: there is nothing to read, or a file cannot be read.
        ConfigurationError: a setting cannot be used.
    """
    files = find_files(target, form)
    if any(file.form == "jsonl" for file in files):
        overrides = {"value_format": "json", **overrides}  # a line of JSONL is an object, whatever a topic holds
    settings = load_settings(overrides, config)
    recipe = recipe_of(settings)
    plan = parse_plan(settings.plan)
    result = _Result(rows_max)
    # What was read and not yet shown: the name of a document that is being judged, or a dead letter beside its name.
    pending: deque[tuple[str, DeadLetter | None]] = deque()

    def show_letters() -> None:
        while pending and (letter := pending[0][1]) is not None:
            where, _ = pending.popleft()
            result.stages[letter.stage] += 1
            if as_json:
                print_json({"where": where, "verdict": "dead-letter", "reason": letter.stage, "message": letter.message})
            else:
                note(f"{where}: {letter.message}")

    with progress(f"checking {target}", sum(file.size_bytes for file in files)) as advance:
        takes_vectors = recipe.method.takes_vectors
        documents = decode_documents(read_documents(files, advance), settings, pending, takes_vectors=takes_vectors)
        for judged in judge_documents(documents, recipe, plan):
            show_letters()
            where, _ = pending.popleft()
            result.add(where, judged)
            if as_json:
                print_json(_as_json(where, judged))
        show_letters()
    if not as_json:
        _print(result)
    return 0


def decode_documents(
    raws: Iterator[RawDocument],
    settings: Settings,
    pending: deque[tuple[str, DeadLetter | None]],
    *,
    takes_vectors: bool = False,
) -> Iterator[OfflineDocument]:
    """Yield what can be judged, decoded as the worker decodes a record with these settings.

    `pending` gets (where, None) for each document that is yielded and (where, letter) for each that cannot be, in order.
    """
    json_decoder = Decoder(settings, takes_vectors=takes_vectors)
    plain = {"value_format": "raw", "text_encoding": "plain", "id_field": None, "time_field": None, "scope_field": None}
    text_decoder = Decoder(settings.model_copy(update=plain))
    for number, raw in enumerate(raws):
        is_json = raw.form == "jsonl"
        if takes_vectors and not is_json:
            sentence = f"{raw.name} is a text, and the recipe takes vectors: give JSONL with a list of numbers."
            pending.append((raw.name, DeadLetter("field", "NotAVector", sentence)))
            continue
        key = key_of(raw.fields, None) if is_json else raw.name
        message = Message("file", 0, number, None if key is None else key.encode("utf-8", "replace"), raw.raw, None, [])
        decoded = (json_decoder if is_json else text_decoder).decode(message)
        if isinstance(decoded, DeadLetter):
            pending.append((raw.name, decoded))
        elif isinstance(decoded, Document):
            pending.append((raw.name, None))
            yield OfflineDocument(decoded.id, decoded.text, decoded.scope)
        else:
            raise InvariantError(f"{raw.name} was passed on as {decoded.label}, which a file cannot ask for.")


def _as_json(where: str, judged: Judged) -> dict[str, object]:
    return {
        "where": where,
        "id": judged.id.decode("utf-8", "replace"),
        "verdict": judged.verdict.value,
        "reason": judged.reason.label,
        "distance": judged.distance,
        "of": None if judged.of_id is None else judged.of_id.decode("utf-8", "replace"),
        "of_number": judged.of_number,
        "fingerprint": judged.fingerprint,
    }


def _print(result: _Result) -> None:
    if result.rows:
        print_table(["id", "reason", "distance", "of", "where"], result.rows)
        left = result.verdicts["duplicate"] - len(result.rows)
        if left:
            console().print(f"... and {left:,} more; --rows 0 lists all, --json every document.", style="dim")
        console().print()
    documents = sum(result.verdicts.values()) + sum(result.stages.values())
    totals = [["documents", f"{documents:,}"]]
    for verdict in Verdict:
        parts = [f"{reason.label} {count:,}" for reason, count in sorted(result.reasons.items()) if reason.verdict is verdict]
        count = result.verdicts[verdict.value]
        totals.append([verdict.value, f"{count:,}" + (f" ({', '.join(parts)})" if parts else "")])
    if result.stages:
        parts = [f"{stage} {count:,}" for stage, count in sorted(result.stages.items())]
        totals.append(["dead letters", f"{sum(result.stages.values()):,} ({', '.join(parts)})"])
    print_table(["", "documents"], totals)
