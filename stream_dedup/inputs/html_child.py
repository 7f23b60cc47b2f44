"""The process that extracts: pages come on standard input, texts leave on standard output; started
by `html`.

A request is 4 bytes (big-endian length) and UTF-8 of that length; an answer the same, led by one
byte: 0 a text, 1 the class of an error. For each page the process sets itself a timer, of its own
CPU and not of the clock; the kernel ends it (SIGPROF) when that is used up. Input that ends, ends
it.

The extractor is resiliparse (Apache-2.0): its main content, or all that is visible where it finds
none. Comments of readers are no main content: with them an article would be another one whenever
somebody has written.
"""

from __future__ import annotations

import signal
import sys
from typing import IO, BinaryIO

LENGTH_BYTES = 4
TEXT, FAILED = 0, 1


def main_text(page: str) -> str:
    """Return the main text of an HTML page."""
    from resiliparse.extract.html2text import extract_plain_text  # noqa: PLC0415 - only this process needs it

    def text_of(*, is_main: bool) -> str:
        return str(
            extract_plain_text(
                page,
                preserve_formatting=True,
                main_content=is_main,
                comments=False,
                list_bullets=False,
                alt_texts=False,
            )
        )

    found = text_of(is_main=True)
    return found if found.strip() else text_of(is_main=False)


def read_exactly(stream: BinaryIO | IO[bytes], size: int) -> bytes | None:
    """Return exactly these bytes; None if the stream ends before."""
    data = stream.read(size)
    return data if data is not None and len(data) == size else None


def main(cpu_seconds: float) -> None:
    """Answer pages until the input ends."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    main_text("")  # the library is loaded now, on nobody's account
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (header := read_exactly(source, LENGTH_BYTES)) is not None:
        raw = read_exactly(source, int.from_bytes(header, "big"))
        if raw is None:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        try:
            kind, answer = (
                TEXT,
                main_text(raw.decode("utf-8", "replace")).encode("utf-8", "replace"),
            )
        except (Exception, MemoryError) as error:  # noqa: BLE001 - each error that a page causes in the library is an answer
            kind, answer = FAILED, type(error).__name__.encode()
        signal.setitimer(signal.ITIMER_PROF, 0)
        target.write(bytes([kind]) + len(answer).to_bytes(LENGTH_BYTES, "big") + answer)
        target.flush()


if __name__ == "__main__":
    main(float(sys.argv[1]))
