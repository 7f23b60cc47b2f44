"""Decode a source record to a document: text, id, time, scope, site and title, by the input settings.

Invariants: the result is a pure function of the record, the input settings and, if the text is stored
elsewhere, of the fetched bytes (otherwise the decision could differ on redelivery, and a
representative might never reach `unique`). An error that one record causes in a library makes that
record a dead letter; only `AwayError` (a service that is unavailable now) and `MemoryError` are
raised. A value is decoded and never encoded again. Invalid UTF-8 is replaced, so equal bytes have
equal fingerprints. JSON that cannot be parsed or has no text at the configured field is a dead
letter, and so is a text of which more than a fifth was replaced.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from stream_dedup.domain.addresses import TextAddress, parse_prefixes, shown
from stream_dedup.domain.document import (
    UNREADABLE,
    DeadLetter,
    Message,
    Reason,
    Unreadable,
    UnreadableHeaders,
    shorten_id,
)
from stream_dedup.domain.errors import AwayError, ConfigurationError, InputError
from stream_dedup.domain.hosts import HostNames, named_site, site_of
from stream_dedup.domain.messages import Messages
from stream_dedup.domain.unexpected_errors import Unforeseen
from stream_dedup.fingerprinting import Content, Vector, as_vector
from stream_dedup.inputs.charset import REPLACED, decode_page, describe_wrong_encoding
from stream_dedup.inputs.claim_checks import Fetched, TextFetcher, fetch_limits
from stream_dedup.inputs.fields import (
    MISSING,
    decode_json,
    field_at,
    joined_texts,
    kind_of,
    parse_or_letter,
    scalar,
    scope_number,
    time_ms_of,
)
from stream_dedup.inputs.html import Extractor
from stream_dedup.inputs.html_child import Page
from stream_dedup.inputs.registry import SchemaRegistry, unframe
from stream_dedup.log.headers import BYPASS
from stream_dedup.settings.settings import Settings
from stream_dedup.settings.units import HEADER_PREFIX

# The error class of a text stored elsewhere, if no texts are fetched.
NOT_FETCHED = "NotFetched"

# The input settings of a value that is a text and has no fields.
PLAIN_TEXT: Final[Mapping[str, str | None]] = {
    "value_format": "raw",
    "text_encoding": "plain",
    **dict.fromkeys(("text_at", "id_field", "time_field", "scope_field", "site_field")),
}

_TIME_MS_MAX = 253_402_300_799_999  # 9999-12-31; RFC 3339 has no later time
# Errors of the fast path: the value is no JSON object whose text, id and title are strings.
_NOT_QUICK = (
    msgspec.MsgspecError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    RecursionError,
)
_Found = TypeVar("_Found")


class DecodedDocument(NamedTuple):
    """A record that can be judged, by its text or, for a recipe of vectors, by its vector.

    `site` is a host in its ASCII form or another name, `title` is unchanged; empty if unknown.
    """

    text: Content
    id: bytes
    time_ms: int
    scope: int
    site: str = ""
    title: str = ""


class Documents(NamedTuple):
    """The documents among some records, as columns, (n,); `places` are the indexes of their records,
    ascending.

    `outcomes` has the reason for each other record, by its index.
    """

    places: list[int]
    texts: list[Content]
    ids: list[bytes]
    times_ms: NDArray[np.int64]
    scopes: NDArray[np.uint64]
    sites: list[str]
    titles: list[str]
    outcomes: dict[int, DeadLetter | Reason]

    @classmethod
    def joined(cls, parts: Sequence[tuple[int, Documents]]) -> Documents:
        """Return the documents of consecutive parts, each given with the index of its first record."""
        if len(parts) == 1 and parts[0][0] == 0:
            return parts[0][1]
        return cls(
            [start + place for start, part in parts for place in part.places],
            [text for _, part in parts for text in part.texts],
            [identifier for _, part in parts for identifier in part.ids],
            np.concatenate([part.times_ms for _, part in parts]),
            np.concatenate([part.scopes for _, part in parts]),
            [site for _, part in parts for site in part.sites],
            [title for _, part in parts for title in part.titles],
            {start + place: why for start, part in parts for place, why in part.outcomes.items()},
        )


class Decoder:
    """Decoder of records, by the input settings."""

    def __init__(
        self, settings: Settings, *, takes_vectors: bool = False, fetches: bool = True
    ) -> None:
        """Create a decoder. `takes_vectors`: the field of the text contains a list of numbers.
        `fetches` False: a text that is stored elsewhere is a dead letter.

        Raises:
            ConfigurationError: vectors are expected, and the values are no JSON; or an extra is not
            installed.
        """
        self._json = settings.value_format != "raw"
        self._registry = SchemaRegistry(settings) if settings.value_format == "avro" else None
        self._framed = settings.value_format == "confluent-json"
        if takes_vectors and not self._json:
            raise ConfigurationError(
                "The recipe expects vectors, but the values are texts: set "
                "STREAM_DEDUP_VALUE_FORMAT=json, and STREAM_DEDUP_TEXT_FIELD to the field with "
                "the list of numbers."
            )
        if takes_vectors and settings.text_at is not None:
            raise ConfigurationError(
                "The recipe expects vectors, which are never stored elsewhere: unset "
                "STREAM_DEDUP_TEXT_AT, or choose a recipe for texts."
            )
        self._takes_vectors = takes_vectors
        self._settings = settings
        self._fetcher = _fetcher_of(settings) if fetches and settings.text_at is not None else None
        self._extractor = Extractor() if settings.text_is == "html" and not takes_vectors else None
        self._base64 = settings.text_encoding == "base64"
        title_is_text = settings.title_field == settings.text_field  # then records have no title
        self._title_field = "" if title_is_text else settings.title_field
        self._sites = HostNames(site_of)
        self._unforeseen = Unforeseen("decode", "decoder")
        # The most common records have a fast path: the value is the text, the key the id, the
        # timestamp the time.
        self._is_encoded = self._base64 or self._extractor is not None
        self._is_plain = not (
            self._json or self._is_encoded or settings.allow_bypass or self._settings.text_at
        )
        # JSON objects whose text and id are strings also have a fast path.
        self._is_plain_json = self._json and not (
            self._framed
            or self._registry is not None
            or self._is_encoded
            or settings.allow_bypass
            or takes_vectors
            or settings.text_at
            or settings.time_field
            or settings.scope_field
            or settings.site_field
            or not self._title_field
            or "." in self._title_field
        )

    @property
    def reads_pages(self) -> bool:
        """Whether the texts are extracted from web pages, one at a time."""
        return self._extractor is not None

    @property
    def fetches(self) -> bool:
        """Whether texts can be stored elsewhere."""
        return self._fetcher is not None

    def addresses(
        self, messages: Sequence[Message], skipped: Set[int] = frozenset()
    ) -> dict[int, TextAddress]:
        """Return the allowed addresses of texts that are stored elsewhere, by the index of their
        record.

        Raises:
            RegistryAwayError: the schema registry does not answer now.
        """
        found = {}
        for place in range(len(messages)):
            if place not in skipped:
                message = messages[place]
                address = self._read_safely(message, self._checked_address, message)
                if isinstance(address, TextAddress):
                    found[place] = address
        return found

    def fetch(
        self,
        addresses: Sequence[TextAddress],
        start: int,
        stretch_bytes: int,
        ahead_bytes: int,
        is_hurried: Callable[[], bool],
    ) -> list[Fetched]:
        """Return the texts at the addresses from index `start`, as `TextFetcher.fetch` does.

        Raises:
            TextAwayError: the first text is unavailable now, or is not fetched yet when
            `is_hurried` returns True.
        """
        return (
            self._fetcher.fetch(addresses, start, stretch_bytes, ahead_bytes, is_hurried)
            if self._fetcher
            else []
        )

    def decode_all(
        self,
        messages: Messages,
        skipped: Set[int] = frozenset(),
        fetched: Mapping[int, Fetched] | None = None,
    ) -> Documents:
        """Return the documents among records, without those at the indexes `skipped`; the result of
        each equals that of `decode`.

        `fetched` has the texts that are stored elsewhere, by the index of their record.
        """
        places: list[int] = []
        documents: list[DecodedDocument] = []
        outcomes: dict[int, DeadLetter | Reason] = {}
        columns = zip(messages.keys, messages.values, messages.timestamps_ms.tolist(), strict=True)
        for place, (key, value, time_ms) in enumerate(columns):
            if place in skipped:
                continue
            outcome: DecodedDocument | DeadLetter | Reason | None = None
            if value is not None and place not in messages.unreadable:
                outcome = self._read_quickly(key or b"", value, time_ms)
            if outcome is None:
                outcome = self.decode(messages[place], (fetched or {}).get(place))
            if isinstance(outcome, DecodedDocument):
                places.append(place)
                documents.append(outcome)
            else:
                outcomes[place] = outcome
        columns_of_documents: Any = list(zip(*documents, strict=True)) or [()] * 6
        texts, ids, times_ms, scopes, sites, titles = columns_of_documents
        return Documents(
            places,
            list(texts),
            list(ids),
            np.array(times_ms, np.int64),
            np.array(scopes, np.uint64),
            list(sites),
            list(titles),
            outcomes,
        )

    def _read_quickly(self, key: bytes, value: bytes, time_ms: int) -> DecodedDocument | None:
        """Return the document of the most common records: the value is the text, or a JSON object
        whose text, id and title are strings; None for all others, which `decode` reads.
        """
        title, identifier = "", key
        if self._is_plain:
            text = value.decode("utf-8", "replace")
        elif self._is_plain_json:
            try:
                fields = decode_json(value)
                text = fields[self._settings.text_field]
                title = fields.get(self._title_field, "").strip()
                if self._settings.id_field:
                    identifier = fields[self._settings.id_field].encode("utf-8", "surrogatepass")
            except _NOT_QUICK:
                return None
        else:
            return None
        has_no_id = self._settings.id_field is not None and not identifier
        if type(text) is not str or REPLACED in text or has_no_id:
            return None
        identifier = shorten_id(identifier)
        time_ms = min(max(time_ms, 0), _TIME_MS_MAX)
        return DecodedDocument(text, identifier, time_ms, 0, self._sites.of(identifier), title)

    def decode(
        self, message: Message, fetched: Fetched | None = None
    ) -> DecodedDocument | DeadLetter | Reason:
        """Return the document, or a dead letter, or the reason to pass the record on unjudged.

        `fetched` is its text if that is stored elsewhere; None: fetch it now.

        Raises:
            AwayError: the schema registry, the store or the extractor does not answer now.
            MemoryError: there is not enough memory.
        """
        return self._read_safely(message, self._decode, message, fetched)

    def _read_safely(
        self, message: Message, read: Callable[..., _Found], *arguments: Any
    ) -> _Found | DeadLetter:
        """Return the result of `read`, or a dead letter if it raises an error of this record."""
        try:
            return read(*arguments)
        except (AwayError, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001 - a record must not stop others
            return self._unforeseen.letter(message, error)

    def _decode(
        self, message: Message, fetched: Fetched | None
    ) -> DecodedDocument | DeadLetter | Reason:
        fields = self._fields_of(message)
        if isinstance(fields, DeadLetter | Reason):
            return fields
        text: Content | bytes | DeadLetter | None = (
            self._fetch_text(message, fields, fetched) if self._settings.text_at else None
        )
        if text is None:
            text = (message.value or b"") if not self._json else self._content_of(fields)
        title = ""
        if (self._is_encoded and isinstance(text, str)) or isinstance(text, bytes):
            page = self._decode_text(text)
            text, title = (page, "") if isinstance(page, DeadLetter) else page
        if isinstance(text, DeadLetter):
            return text
        if isinstance(text, str) and (why := describe_wrong_encoding(text)):
            return DeadLetter("decode", "OtherEncoding", why)
        identifier = self._id_of(message, fields)
        return DecodedDocument(
            text,
            identifier,
            self._time_of(message, fields),
            self._scope_of(fields),
            self._site_of(fields, identifier),
            self._title_of(fields) or title,
        )

    def id_of(self, message: Message) -> bytes | None:
        """Return the id of a record, also of one without a text; its key if it cannot be read."""
        found = self._read_safely(message, self._read_id, message)
        return message.key if isinstance(found, DeadLetter) else found

    def _read_id(self, message: Message) -> bytes | None:
        fields = self._fields_of(message)
        return (
            message.key if isinstance(fields, DeadLetter | Reason) else self._id_of(message, fields)
        )

    def _fields_of(self, message: Message) -> Any | DeadLetter | Reason:
        """Return the fields of a value; None for a value that is the text; or the reason why it is
        no document.
        """
        value = message.value
        if isinstance(message, Unreadable):
            return _unreadable(message)
        if value is None:
            return Reason.TOMBSTONE
        if self._settings.allow_bypass and _asks_for_bypass(message):
            return Reason.BYPASS
        if not self._json:
            return None
        if self._framed:
            unframed = unframe(value)
            if isinstance(unframed, str):
                return DeadLetter("decode", "NotFramed", unframed)
            value = unframed
        return (
            parse_or_letter(value) if self._registry is None else self._registry.read_value(value)
        )

    def _content_of(self, fields: Any) -> Content | bytes | DeadLetter:
        return self._vector_of(fields) if self._takes_vectors else self._text_of(fields)

    def _fetch_text(self, message: Message, fields: Any, fetched: Fetched | None) -> Fetched | None:
        """Return the text at the address that a record names; None if it names none."""
        if fetched is not None:
            return fetched
        address = self._raw_address(message, fields)
        if address is None or isinstance(address, DeadLetter):
            return address
        if self._fetcher is None:
            return DeadLetter(
                "fetch",
                NOT_FETCHED,
                f"The text is stored at {shown(address)}, but is not fetched here.",
            )
        checked = self._fetcher.check(address)
        return checked if isinstance(checked, DeadLetter) else self._fetcher.fetch_one(checked)

    def _checked_address(self, message: Message) -> TextAddress | DeadLetter | None:
        """Return the allowed address of a record's text, or the dead letter of a refused one; None if
        it names none or is not a document.
        """
        fields = self._fields_of(message)
        if self._fetcher is None or isinstance(fields, DeadLetter | Reason):
            return None
        address = self._raw_address(message, fields)
        return self._fetcher.check(address) if isinstance(address, str) else address

    def _raw_address(self, message: Message, fields: Any) -> str | DeadLetter | None:
        """Return the address that a record names, None if it names none; the last of equal headers
        counts.
        """
        location = self._settings.text_at or ""
        if location.startswith(HEADER_PREFIX):
            name = location.removeprefix(HEADER_PREFIX)
            values = (value for header, value in reversed(message.headers) if header == name)
            value = next(values, None)
            try:
                return value.decode("utf-8") if value else None
            except UnicodeDecodeError:
                return DeadLetter(
                    "field",
                    "NotAnAddress",
                    f"The header {name!r} is not UTF-8; an address is expected.",
                )
        found = field_at(fields, location)
        if isinstance(found, list) and len(found) == 1:
            found = found[0]
        if found is MISSING or found is None or found == "":
            return None
        if not isinstance(found, str):
            return DeadLetter(
                "field",
                "NotAnAddress",
                f"The field {location!r} contains {kind_of(found)}; an address is expected.",
            )
        return found

    def _decode_text(self, encoded: str | bytes) -> Page | DeadLetter:
        """Return the text of a field or a whole value; of a web page with its title."""
        if self._base64:
            try:
                encoded = base64.b64decode(
                    encoded if isinstance(encoded, str) else encoded.decode("ascii"), validate=False
                )
            except (binascii.Error, ValueError) as error:
                return DeadLetter("decode", "Base64", f"The text is not base64: {error}.")
        if self._extractor is None:
            return Page(encoded if isinstance(encoded, str) else encoded.decode("utf-8", "replace"))
        return self._extractor.extract(
            encoded if isinstance(encoded, str) else decode_page(encoded)
        )

    def _text_of(self, fields: Any) -> str | bytes | DeadLetter:
        found = joined_texts(field_at(fields, self._settings.text_field))
        if isinstance(found, str | bytes):  # Avro has bytes
            return found
        if found is MISSING and not isinstance(fields, dict):
            return DeadLetter(
                "field",
                "NotObject",
                f"The value is {'a list' if isinstance(fields, list) else kind_of(fields)}; an object is expected.",
            )
        if found is MISSING:
            nor = (
                f", and no address at {self._settings.text_at!r}" if self._settings.text_at else ""
            )
            return DeadLetter(
                "field",
                "MissingField",
                f"The value has no field {self._settings.text_field!r} for the text{nor}.",
            )
        return DeadLetter(
            "field",
            "NotText",
            f"The field {self._settings.text_field!r} contains {kind_of(found)}; a text is expected.",
        )

    def _vector_of(self, fields: Any) -> Vector | DeadLetter:
        found = field_at(fields, self._settings.text_field)
        if found is MISSING:
            return DeadLetter(
                "field",
                "MissingField",
                f"The value has no field {self._settings.text_field!r} for the vector.",
            )
        if isinstance(found, list):  # the JSON of a row of Parquet has null for NaN
            found = [math.nan if number is None else number for number in found]
        if not isinstance(found, list) or not all(
            isinstance(number, int | float) and not isinstance(number, bool) for number in found
        ):
            kind = "a list that is not all numbers" if isinstance(found, list) else kind_of(found)
            return DeadLetter(
                "field",
                "NotAVector",
                f"The field {self._settings.text_field!r} contains {kind}; a vector is expected.",
            )
        try:
            return as_vector(found)
        except InputError as error:
            return DeadLetter("field", "NotAVector", str(error))

    def _id_of(self, message: Message, fields: Any) -> bytes:
        found = (
            scalar(field_at(fields, self._settings.id_field)) if self._settings.id_field else None
        )
        return shorten_id(found.encode("utf-8", "surrogatepass") if found else (message.key or b""))

    def _time_of(self, message: Message, fields: Any) -> int:
        time_ms = None
        if self._settings.time_field:
            found = field_at(fields, self._settings.time_field)
            time_ms = time_ms_of(found[0] if isinstance(found, list) and found else found)
        if time_ms is None:
            time_ms = message.timestamp_ms or 0
        return min(max(time_ms, 0), _TIME_MS_MAX)

    def _scope_of(self, fields: Any) -> int:
        if not self._settings.scope_field:
            return 0
        found = scalar(field_at(fields, self._settings.scope_field))
        return 0 if found is None else scope_number(found)

    def _site_of(self, fields: Any, identifier: bytes) -> str:
        named = (
            scalar(field_at(fields, self._settings.site_field))
            if self._settings.site_field
            else None
        )
        return (named_site(named) if named else "") or self._sites.of(identifier)

    def _title_of(self, fields: Any) -> str:
        found = field_at(fields, self._title_field) if self._title_field else None
        return (scalar(found) or "").strip()


def ids_of(settings: Settings) -> Callable[[Message], bytes | None]:
    """Return a function that returns a record's id as the worker does: the value at ID_FIELD, or the
    key.
    """
    if settings.id_field is None:
        return lambda message: message.key
    return Decoder(settings.model_copy(update={"text_is": "text"}), fetches=False).id_of


def _fetcher_of(settings: Settings) -> TextFetcher:
    prefixes = parse_prefixes(settings.text_prefixes or "")
    return TextFetcher(prefixes, fetch_limits(settings.text_bytes))


def _unreadable(message: Unreadable) -> DeadLetter:
    if isinstance(message, UnreadableHeaders):
        return DeadLetter(
            "decode",
            "UnreadableHeaders",
            f"The name of a header is not UTF-8 ({message.name}), so Kafka's client returns none "
            "of the record's headers. This dead letter has the record's key and value, but not "
            "its headers. Configure the crawler to send header names in UTF-8.",
        )
    return DeadLetter(
        "decode",
        UNREADABLE,
        f"The record cannot be read from Kafka, although later records can: {message.why}. It "
        "remains at its position.",
    )


def _asks_for_bypass(message: Message) -> bool:
    return any(name == BYPASS and value == b"true" for name, value in message.headers)
