"""The text of a document that came from a file of pages or is one: of a web page its main text, of any other all of it."""

from __future__ import annotations

from stream_dedup.ground.document import DeadLetter
from stream_dedup.inputs.charset import decode_page
from stream_dedup.inputs.html import CPU_SECONDS, Extractor, Failure
from stream_dedup.inputs.sources import RawDocument


class Pages:
    """Reads pages and texts; the extractor is started with the first page."""

    def __init__(self, cpu_seconds: float = CPU_SECONDS) -> None:
        """Take how long a page may keep the extractor busy, in seconds of CPU."""
        self._cpu_seconds = cpu_seconds
        self._extractor: Extractor | None = None

    def close(self) -> None:
        """End the extractor."""
        if self._extractor is not None:
            self._extractor.close()
            self._extractor = None

    def text_of(self, raw: RawDocument) -> str | DeadLetter:
        """Return the text of a document that is no JSON, or why there is none.

        Raises:
            ConfigurationError: it is a web page, and no extractor is installed.
        """
        text = decode_page(raw.raw, raw.charset)
        if not raw.is_page:
            return text
        if self._extractor is None:
            self._extractor = Extractor(self._cpu_seconds)
        found = self._extractor.extract(text)
        return DeadLetter("fingerprint", *found) if isinstance(found, Failure) else found
