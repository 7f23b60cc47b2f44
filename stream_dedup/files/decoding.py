"""Decode the rows of files as the worker decodes records."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing

from stream_dedup.domain.document import DeadLetter, Message, Reason, shorten_id
from stream_dedup.domain.errors import InputError, InvariantError
from stream_dedup.domain.hosts import site_of
from stream_dedup.files.offline import OfflineDocument
from stream_dedup.files.parts import Pending
from stream_dedup.files.remarks import Remarks
from stream_dedup.files.rows import VectorLengths, bytes_problem
from stream_dedup.inputs.decoder import PLAIN_TEXT, DecodedDocument, Decoder
from stream_dedup.inputs.fields import time_ms_of
from stream_dedup.inputs.html import Pages
from stream_dedup.inputs.sources import (
    RawDocument,
    find_files,
    is_file,
    key_of,
    read_documents,
)
from stream_dedup.settings.settings import Settings


def decode_documents(
    raws: Iterator[RawDocument],
    settings: Settings,
    pending: Pending,
    *,
    takes_vectors: bool = False,
    remarks: Remarks | None = None,
    rank: Callable[[RawDocument], float] = lambda _raw: 0.0,
) -> Iterator[OfflineDocument]:
    """Decode rows as the worker decodes records with these settings, and yield the documents that
    can be judged. The text of a web page is its main text.

    Append to `pending`, in order, (location, None) for each yielded document, and (location, letter)
    for each document that cannot be judged.

    Raises:
        ConfigurationError: a setting is not valid, or a row is a web page and no extractor is
        installed.
    """
    json_decoder = Decoder(settings, takes_vectors=takes_vectors)
    text_decoder = Decoder(settings.model_copy(update=PLAIN_TEXT))
    remarks = Remarks(settings) if remarks is None else remarks
    vector_lengths = VectorLengths()
    with closing(Pages()) as pages:
        for number, raw in enumerate(raws):
            is_json = raw.form == "jsonl"
            if raw.lost is not None:
                pending.append((raw.name, raw.lost))
                continue
            if takes_vectors and not is_json:
                sentence = f"{raw.name} is a text; the recipe expects JSONL with lists of numbers."
                pending.append((raw.name, DeadLetter("field", "NotAVector", sentence)))
                continue
            decoded = _decode_row(raw, number, json_decoder if is_json else text_decoder, pages)
            vector = decoded.text if takes_vectors and isinstance(decoded, DecodedDocument) else ""
            if not isinstance(vector, str) and (problem := vector_lengths.problem_of(vector)):
                decoded = DeadLetter("field", "NotAVector", problem)
            if isinstance(decoded, DeadLetter):
                if raw.omits_bytes(settings.text_field):
                    decoded = DeadLetter("field", "NotText", bytes_problem(settings.text_field))
                remarks.add_refused(raw, decoded)
                pending.append((raw.name, decoded))
            elif isinstance(decoded, DecodedDocument):
                site = decoded.site or site_of((key_of(raw.fields, "url") or "").encode())
                remarks.add_document(raw, decoded.text, site)
                pending.append((raw.name, None))
                yield OfflineDocument(
                    decoded.id,
                    decoded.text,
                    decoded.scope,
                    rank(raw),
                    site,
                    decoded.title,
                    decoded.time_ms,
                )
            else:
                raise InvariantError(
                    f"{raw.name} was decoded as {decoded.label}, which only records can request."
                )


def _decode_row(
    raw: RawDocument, number: int, decoder: Decoder, pages: Pages
) -> DecodedDocument | DeadLetter | Reason:
    """Decode a row as the worker decodes a record; extract the main text of a web page."""
    key = key_of(raw.fields, None) if raw.form == "jsonl" else raw.name
    # Without an id, the location is the id, so that duplicates can name the document.
    identifier = (raw.name if key is None else key).encode("utf-8", "surrogatepass")
    if not raw.is_page and raw.form != "warc":
        return decoder.decode(Message("file", 0, number, identifier, raw.raw, None, []))
    page = pages.read(raw)
    if isinstance(page, DeadLetter):
        return page
    return DecodedDocument(
        page.text,
        shorten_id(identifier),
        scope=0,
        time_ms=time_ms_of(raw.time) or 0 if raw.form == "warc" else 0,
        site=site_of(identifier),
        title=page.title,
    )


def is_row(target: str) -> bool:
    """Return whether a target is the location of a row, such as `pages.jsonl:12`. Lines are counted
    from 1, rows of Parquet and Arrow from 0.
    """
    name, _, number = target.rpartition(":")
    return number.isdecimal() and is_file(name)


def read_row(settings: Settings, target: str, *, takes_vectors: bool) -> DecodedDocument:
    """Return the document at the location of a row (see `is_row`), decoded as `check` decodes it.

    Raises:
        InputError: the file has no such row, or it cannot be judged.
    """
    name, _, number = target.rpartition(":")
    file = find_files(name, "auto")[0]
    first = (
        int(number) if file.form == "columns" else 0
    )  # lines can be counted only by reading them
    # A file that cannot be read is an unreadable document with the name of the file.
    names = {file.name, f"{file.name}:{number}"}
    rows = (raw for raw in read_documents([file], first=first) if raw.name in names)
    pending: Pending = deque()
    document = next(decode_documents(rows, settings, pending, takes_vectors=takes_vectors), None)
    if document is not None:
        return DecodedDocument(
            document.text,
            document.id,
            document.time_ms,
            document.scope,
            document.site,
            document.title,
        )
    letter = pending[-1][1] if pending else None
    numbering = "lines are counted from 1, rows of Parquet and Arrow from 0."
    reason = f"there is no such row; {numbering}" if letter is None else letter.message
    raise InputError(f"{target} cannot be read: {reason}")
