"""Take the documentation's screenshots of the console; run by `make pictures`."""

from __future__ import annotations

import sys
import tempfile
import urllib.parse
from pathlib import Path

from tests.console import browser
from tests.console.sample import sources
from tests.console.searched import GROUP, SENTENCES, open_searchable_sources
from tests.console.test_pages import serving

FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "console"
# The file, the page, its width and height, and whether it is dark.
PICTURES = (
    ("now.png", "", 1000, 900, False),
    ("decision.png", "decision?position=duplicates-2@8", 1000, 900, True),
    ("decisions-phone.png", "decisions?reason=near", 390, 760, False),
)
# Screenshots of the sample with a full-text engine.
SEARCHED = (
    ("find.png", f"find?{urllib.parse.urlencode({'q': SENTENCES})}", 1000, 900, False),
    ("group.png", GROUP, 1000, 620, True),
    ("find-phone.png", f"find?{urllib.parse.urlencode({'q': SENTENCES})}", 390, 760, True),
)


def main() -> int:
    """Write the pictures; return the exit code."""
    if missing_browser := browser.missing_browser():
        sys.stderr.write(missing_browser + "\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    with (
        browser.chromium() as driver,
        tempfile.TemporaryDirectory() as folder,
        open_searchable_sources(Path(folder)) as searched,
    ):
        for console_sources, pictures in ((sources(), PICTURES), (searched, SEARCHED)):
            with serving(console_sources) as port:
                for name, address, width, height, dark in pictures:
                    browser.set_viewport(driver, width=width, height=height, dark=dark)
                    driver.get(f"http://127.0.0.1:{port}/{address}")
                    driver.save_screenshot(str(FOLDER / name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
