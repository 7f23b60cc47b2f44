"""Extract the main text of an HTML page, without navigation, banners and footers. Needs
`crawl-dedup[html]`.

Extraction runs in a child process (`html_child`), because some pages keep any parser busy for
minutes: 500 kB of nested `div` keep this one busy for more than five. The process has a few seconds
of CPU for each page, and is replaced if the kernel ends it.

Invariants: the result depends on the page and not on the load of the machine: the limit is CPU time.
A page is given up when it reaches the limit, or crashed the process twice. A slower machine may give
up a page that another extracts; `can_vary` marks this, the worker retracts such a page, and
remembers it until the process ends. No page reaches the limit by its size: 1 MB needs about 100 ms.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import signal
import subprocess
import sys
import threading
from collections import OrderedDict
from typing import IO, Final, cast

from stream_dedup.domain.document import DeadLetter
from stream_dedup.domain.errors import ConfigurationError, ExtractorAwayError
from stream_dedup.domain.extras import install_command
from stream_dedup.inputs.charset import decode_page, describe_wrong_encoding
from stream_dedup.inputs.children import start_child
from stream_dedup.inputs.html_child import LENGTH_BYTES, TEXT, Page, read_exactly
from stream_dedup.inputs.sources import RawDocument

CPU_SECONDS = 2  # for one page; one of 1 MB takes 0.05 s
_TRIES = 2
_STAGE: Final = "fingerprint"
_REMEMBERED = 10_000
_MEMORY_BYTES = 2 << 30


class Extractor:
    """Extracts one page at a time, for all threads. The process is started with the first page."""

    def __init__(
        self, cpu_seconds: float = CPU_SECONDS, command: tuple[str, ...] | None = None
    ) -> None:
        """Check that the extractor is installed; `command` replaces `html_child`, with the same
        protocol.

        Raises:
            ConfigurationError: it is not installed.
        """
        if command is None and importlib.util.find_spec("resiliparse") is None:
            raise ConfigurationError(
                "The main text of web pages (STREAM_DEDUP_TEXT_IS=html, and pages in files) needs "
                f"an extractor that is not installed; run: {install_command('html')}"
            )
        # -P: a file in the working directory must not replace a module.
        self._command = command or (
            sys.executable,
            "-P",
            "-m",
            "stream_dedup.inputs.html_child",
            str(cpu_seconds),
        )
        self._child: subprocess.Popen[bytes] | None = None
        self._cpu_seconds = cpu_seconds
        self._returncode: int | None = None  # of the last process that ended
        self._lock = threading.Lock()
        self._given_up: OrderedDict[bytes, DeadLetter] = OrderedDict()

    def extract(self, page: str) -> Page | DeadLetter:
        """Return the text and the title of a page, or a dead letter with the reason of the failure.

        Raises:
            ExtractorAwayError: the process cannot be started now.
        """
        raw = page.encode("utf-8", "replace")
        digest = hashlib.blake2b(raw, digest_size=16).digest()
        with self._lock:
            known = self._given_up.get(digest)
            if known is not None:
                return known
            why = "crashed the extractor twice"
            for _ in range(_TRIES):
                found = self._ask(raw)
                if found is not None:
                    return found
                if self._returncode == -signal.SIGPROF:
                    why = f"needed more than {self._cpu_seconds:g} s of CPU in the extractor"
                    break
            failure = DeadLetter(
                _STAGE,
                "PageGivenUp",
                f"The page {why}, so its text cannot be judged.",
                can_vary=True,
            )
            self._given_up[digest] = failure
            if len(self._given_up) > _REMEMBERED:
                self._given_up.popitem(last=False)
            return failure

    def close(self) -> None:
        """End the child process; it also ends with this process."""
        with self._lock:
            self._stop()

    def _ask(self, raw: bytes) -> Page | DeadLetter | None:
        """Return the answer for a page; None if the process ended before it."""
        if self._child is None:
            pipes = {
                "stdin": subprocess.PIPE,
                "stdout": subprocess.PIPE,
                "stderr": subprocess.DEVNULL,
            }
            try:
                self._child = start_child(self._command, _MEMORY_BYTES, **pipes)
            except OSError as error:
                raise ExtractorAwayError(
                    f"The extractor of pages cannot be started now ({error}); the records wait. "
                    "Give this process more memory, processes or open files."
                ) from error
        source, target = cast("IO[bytes]", self._child.stdin), cast("IO[bytes]", self._child.stdout)
        try:
            source.write(len(raw).to_bytes(LENGTH_BYTES, "big") + raw)
            source.flush()
        except BrokenPipeError:
            self._stop()
            return None
        header = read_exactly(target, 1 + LENGTH_BYTES)
        answer = None if header is None else read_exactly(target, int.from_bytes(header[1:], "big"))
        if header is None or answer is None:
            self._stop()
            return None
        text = answer.decode("utf-8", "replace")
        if header[0] == TEXT:
            title, _, text = text.partition("\n")
            return Page(text, title)
        return DeadLetter(
            _STAGE,
            text,
            f"The extractor failed on the page: {text}.",
            can_vary=text == MemoryError.__name__,
        )

    def _stop(self) -> None:
        if self._child is None:
            return
        child, self._child = self._child, None
        child.kill()
        # `with` closes the pipes and waits; bytes that the child did not read cannot be flushed.
        with contextlib.suppress(BrokenPipeError), child:
            pass
        self._returncode = child.returncode


class Pages:
    """Reads the texts of files: the main text and title of a web page, the whole text of others. The
    extractor is started with the first page.
    """

    def __init__(self) -> None:
        self._extractor: Extractor | None = None

    def close(self) -> None:
        """End the extractor."""
        if self._extractor is not None:
            self._extractor.close()
            self._extractor = None

    def read(self, raw: RawDocument) -> Page | DeadLetter:
        """Return the text and the title of a document that is no JSON, or a dead letter.

        Raises:
            ConfigurationError: it is a web page, and no extractor is installed.
        """
        page = Page(decode_page(raw.raw, raw.charset))
        if raw.is_page:
            if self._extractor is None:
                self._extractor = Extractor()
            found = self._extractor.extract(page.text)
            if isinstance(found, DeadLetter):
                return found
            page = found
        why = describe_wrong_encoding(page.text)
        return DeadLetter("decode", "OtherEncoding", why) if why else page
