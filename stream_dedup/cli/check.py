"""`check`: the duplicates in a file, found by the same decoding, fingerprints and index, without Kafka."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stream_dedup.cli.options import (
    DocumentFormat,
    FormatOption,
    Given,
    JsonOption,
    Settings,
    SimilarityOption,
    StrictOption,
    TextFieldOption,
    command,
)
from stream_dedup.cli.remarks import Losses, Remarks, told
from stream_dedup.ground.document import DeadLetter, Message, Reason, Verdict, shorten_id
from stream_dedup.ground.errors import InputError, InvariantError
from stream_dedup.ground.terminal import console, note, print_json, print_table, progress

if TYPE_CHECKING:
    from stream_dedup.inputs.sources import RawDocument, SourceFile
    from stream_dedup.local.offline import Judged, OfflineDocument


@command("check", example="stream-dedup check pages.jsonl --text-field body --plan classic", asks_kafka=False)
def check_command(
    given: Given,
    target: Annotated[
        str, typer.Argument(metavar="FILE|DIR|-", help="JSONL, Parquet, Arrow, WARC, text or pages; - is standard input.")
    ],
    document_format: FormatOption = DocumentFormat.AUTO,
    lines: Annotated[bool, typer.Option("--lines", help="Plain text, one document a line (= --format lines).")] = False,
    text_field: TextFieldOption = None,
    id_field: Annotated[
        str | None, typer.Option("--id-field", metavar="PATH", help="Field that holds the id.  [default: id, else url]")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Recipe of the prints: words, chars, chars:64, keywords, ... or its stages.")
    ] = None,
    plan: Annotated[str | None, typer.Option("--plan", help="Plan to judge with: bands, wide, classic, or in numbers.")] = None,
    similarity: SimilarityOption = None,
    rows: Annotated[
        int, typer.Option("--rows", min=0, help="Most duplicates to list, and most dead letters; 0 lists all.")
    ] = 50,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FOLDER", help="Write kept rows and duplicates there; run again after a kill, it goes on."
        ),
    ] = None,
    strict: StrictOption = False,
    as_json: JsonOption = False,
) -> int:
    """Find the duplicates in a file with the same core, without Kafka. With --json one object per document."""
    from stream_dedup.inputs.sources import find_files

    chosen = DocumentFormat.LINES if lines else document_format
    files = find_files(target, chosen.value)
    settings = settings_for(
        files, given, text_field=text_field, id_field=id_field, recipe=recipe, plan=plan, similarity=similarity
    )
    if to is not None:
        return _check_into(settings, target, files, to, rows, is_strict=strict, as_json=as_json)
    return _check(settings, target, files, rows, is_strict=strict, as_json=as_json)


@dataclass(slots=True)
class _Result:
    """What is shown at the end; of the duplicates only as many as are listed."""

    rows_max: int
    reasons: Counter[Reason] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    rows: list[list[str]] = field(default_factory=list)
    lost: Losses = field(default_factory=lambda: Losses(0))

    def add(self, where: str, judged: Judged) -> None:
        self.reasons[judged.reason] += 1
        self.verdicts[judged.verdict.value] += 1
        if judged.verdict is Verdict.DUPLICATE and (not self.rows_max or len(self.rows) < self.rows_max):
            of = (judged.of_id or b"").decode("utf-8", "replace") or f"number {judged.of_number}"
            name = judged.id.decode("utf-8", "replace")
            similarity = "" if judged.similarity is None else f"{judged.similarity:.2f}"
            self.rows.append([name or where, judged.reason.label, similarity, str(judged.distance), of, where])


def _check(
    settings: Settings, target: str, files: Sequence[SourceFile], rows_max: int, *, is_strict: bool, as_json: bool
) -> int:
    """Judge every document in order, print duplicates and totals (or one JSON object each); return the exit code."""
    from stream_dedup.inputs.sources import read_documents
    from stream_dedup.local.offline import judge_documents
    from stream_dedup.settings.recipe import recipe_of

    recipe = recipe_of(settings)
    plan = settings.judging_plan
    result = _Result(rows_max)
    # What was read and not yet shown: the name of a document that is being judged, or a dead letter beside its name.
    pending: deque[tuple[str, DeadLetter | None]] = deque()
    remarks = Remarks(settings)

    def show_letters() -> None:
        while pending and (letter := pending[0][1]) is not None:
            where, _ = pending.popleft()
            result.stages[letter.stage] += 1
            result.lost.add(letter)
            if as_json:
                print_json({"where": where, "verdict": "dead-letter", "reason": letter.stage, "message": letter.message})
            elif not rows_max or sum(result.stages.values()) <= rows_max:
                note(told(where, letter))

    with progress(f"checking {target}", sum(file.size_bytes for file in files)) as advance:
        takes_vectors = recipe.method.takes_vectors
        raws = read_documents(files, advance, remarks.passed_over)
        documents = decode_documents(raws, settings, pending, takes_vectors=takes_vectors, remarks=remarks)
        for judged in judge_documents(documents, recipe, plan):
            show_letters()
            where, _ = pending.popleft()
            result.add(where, judged)
            if as_json:
                print_json(_as_json(where, judged))
        show_letters()
    if not as_json:
        _print(result)
    remarks.close()
    return result.lost.exit_code(sum(result.verdicts.values()), is_strict=is_strict)


def _check_into(
    settings: Settings, target: str, files: Sequence[SourceFile], folder: Path, rows_max: int, *, is_strict: bool, as_json: bool
) -> int:
    """Judge every document of `target` and write kept rows and duplicates into `folder`; return the exit code.

    Raises:
        InputError: it cannot be read twice, or the folder holds something else.
    """
    from stream_dedup.local.parts import PartedOutput
    from stream_dedup.settings.recipe import recipe_of

    if any(file.path is None for file in files):
        raise InputError("Standard input cannot be gone back to; name a file or a folder with --to.")
    if folder.resolve().is_relative_to(Path(target).resolve()):
        raise InputError(f"{folder} lies in {target}, so it would be read as well; name a folder outside with --to.")
    recipe, plan = recipe_of(settings), settings.judging_plan
    inputs = ("value_format", "text_is", "text_encoding", "text_field", "id_field", "time_field", "scope_field")
    identity = {
        "files": [[file.name, file.size_bytes, file.path.stat().st_mtime_ns] for file in files if file.path],
        "settings": {name: str(getattr(settings, name)) for name in inputs}
        | ({} if settings.text_at is None else {"text_at": settings.text_at}),
        "recipe": recipe.id,
        "plan": plan.id,
    }
    remarks, lost = Remarks(settings), Losses(rows_max)
    output = PartedOutput(folder, files, identity, lost.tell, remarks.passed_over)
    output.open()
    if output.resumed:
        is_over = ", which is complete" if output.is_done else ""
        note(f"{output.resumed:,} rows were written by an earlier run{is_over}.")
    if not output.is_done:
        with progress(f"checking {target}", sum(file.size_bytes for file in files)) as advance:
            takes_vectors = recipe.method.takes_vectors
            decode = partial(decode_documents, settings=settings, takes_vectors=takes_vectors, remarks=remarks)
            output.run(lambda raws, pending: decode(raws, pending=pending), recipe, plan, advance)
    counts = {kind: output.counts[kind] for kind in ("kept", "duplicates", "unreadable")}
    if as_json:
        print_json({"to": str(folder), **counts})
    else:
        print_table(["", "rows"], [[kind, f"{count:,}"] for kind, count in counts.items()])
    remarks.close()
    lost.count, lost.damaged = counts["unreadable"], output.counts["damaged"]  # of earlier runs, too
    lost.close()
    return lost.exit_code(counts["kept"] + counts["duplicates"], is_strict=is_strict)


def settings_for(files: Sequence[SourceFile], given: Given, **flags: object) -> Settings:
    """Return the settings with which these files are read: a line of JSONL is always an object."""
    from stream_dedup.inputs.sources import hold_objects, need_packages
    from stream_dedup.settings.layers import load_settings

    form = {"value_format": "json"} if hold_objects(files) else {}
    settings = load_settings(form | given.overrides(**flags), given.config)
    for file in files:
        need_packages(file)
    needed = {"text": settings.text_field if settings.text_at is None else settings.text_at, "id": settings.id_field}
    for what, path in needed.items():
        if path:
            need_columns(files, path, what)
    return settings


def need_columns(files: Sequence[SourceFile], field_path: str, what: str) -> None:
    """Raise `InputError` if a file of columns that can be read has none for the text, or the id: no row would have one."""
    from stream_dedup.inputs.columnar import columns_of

    for file in files:
        if file.form == "columns" and file.path is not None:
            try:
                names = columns_of(file.path)
            except (InputError, OSError):
                continue  # told where it is read
            if not {field_path, field_path.split(".", maxsplit=1)[0]} & set(names):
                raise InputError(
                    f"{file.name} has no column {field_path!r}; its columns are {', '.join(names)}. Name the one with the "
                    f"{what} by --{what}-field."
                )


def decode_documents(
    raws: Iterator[RawDocument],
    settings: Settings,
    pending: deque[tuple[str, DeadLetter | None]],
    *,
    takes_vectors: bool = False,
    remarks: Remarks | None = None,
) -> Iterator[OfflineDocument]:
    """Yield what can be judged, decoded as the worker decodes a record with these settings; web pages by their main text.

    `pending` gets (where, None) for each document that is yielded and (where, letter) for each that cannot be, in order.

    Raises:
        ConfigurationError: a setting cannot be used, or there is a web page, and no extractor is installed.
    """
    from stream_dedup.inputs.decoder import DecodedDocument, Decoder
    from stream_dedup.inputs.pages import Pages
    from stream_dedup.inputs.sources import key_of
    from stream_dedup.local.offline import OfflineDocument

    json_decoder = Decoder(settings, takes_vectors=takes_vectors)
    fields = ("text_at", "id_field", "time_field", "scope_field")
    plain = {"value_format": "raw", "text_encoding": "plain", **dict.fromkeys(fields)}
    text_decoder = Decoder(settings.model_copy(update=plain))
    remarks = Remarks(settings) if remarks is None else remarks
    with closing(Pages(settings.page_cpu.total_seconds())) as pages:
        for number, raw in enumerate(raws):
            is_json = raw.form == "jsonl"
            if raw.lost is not None:
                pending.append((raw.name, raw.lost))
                continue
            if takes_vectors and not is_json:
                sentence = f"{raw.name} is a text, and the recipe takes vectors: give JSONL with a list of numbers."
                pending.append((raw.name, DeadLetter("field", "NotAVector", sentence)))
                continue
            key = key_of(raw.fields, None) if is_json else raw.name
            if key is None and raw.row is not None:
                key = raw.name  # a row without an id is known by its number, so that its duplicates can name it
            written = None if key is None else key.encode("utf-8", "replace")
            decoded: DecodedDocument | DeadLetter | Reason
            if raw.is_page or raw.form == "warc":
                text = pages.text_of(raw)
                decoded = text if isinstance(text, DeadLetter) else DecodedDocument(text, shorten_id(written or b""), 0, 0)
            else:
                decoded = (json_decoder if is_json else text_decoder).decode(
                    Message("file", 0, number, written, raw.raw, None, [])
                )
            if isinstance(decoded, DeadLetter):
                remarks.refused(raw, decoded)
                pending.append((raw.name, decoded))
            elif isinstance(decoded, DecodedDocument):
                remarks.read(raw, decoded.text)
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
        "similarity": judged.similarity,
        "of": None if judged.of_id is None else judged.of_id.decode("utf-8", "replace"),
        "of_number": judged.of_number,
        "fingerprint": judged.fingerprint,
    }


def _print(result: _Result) -> None:
    if result.rows:
        print_table(["id", "reason", "similarity", "distance", "of", "where"], result.rows)
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
        unnamed = sum(result.stages.values()) - result.rows_max
        if result.rows_max and unnamed > 0:
            note(f"... and {unnamed:,} dead letters more; --rows 0 names all.")
        parts = [f"{stage} {count:,}" for stage, count in sorted(result.stages.items())]
        totals.append(["dead letters", f"{sum(result.stages.values()):,} ({', '.join(parts)})"])
    print_table(["", "documents"], totals)
