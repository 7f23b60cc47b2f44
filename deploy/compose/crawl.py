"""Print an endless crawl as JSON lines at a steady pace, for `stream-dedup load -`.

Invariant: a seed gives the same pages; the pace is kept on average, also after a pause of the
reader.
"""

from __future__ import annotations

import argparse
import sys
import time

from stream_dedup.demo.crawl import endless

LANGUAGES = ("en", "de", "fr", "ru", "ar", "hi", "zh", "ja", "th")


def main() -> int:
    """Print the pages."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--per-second", type=float, default=100.0)
    asked = parser.parse_args()
    begun = time.monotonic()
    for number, page in enumerate(
        endless(asked.seed, asked.pages, size_bytes=2000, languages=LANGUAGES)
    ):
        early = begun + number / asked.per_second - time.monotonic()
        if early > 0:
            sys.stdout.flush()
            time.sleep(early)
        sys.stdout.buffer.write(page.value + b"\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
