"""The pictures of the console in the documentation: `make pictures` takes them anew from the pages of the sample."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.console import browser
from tests.console.sample import sources
from tests.console.test_pages import serving

FOLDER = Path(__file__).parents[2] / "docs" / "how-to" / "console"
# The file, the page, its width and height, and whether it is dark.
PICTURES = (
    ("now.png", "", 1000, 900, False),
    ("decision.png", "decision?at=duplicates-2@8", 1000, 900, True),
    ("decisions-phone.png", "decisions?reason=near", 390, 760, False),
)


def main() -> int:
    """Write the pictures; return the exit code."""
    if lacking := browser.lacking():
        sys.stderr.write(lacking + "\n")
        return 1
    FOLDER.mkdir(exist_ok=True)
    with browser.chromium() as driver, serving(sources()) as port:
        for name, address, width, height, dark in PICTURES:
            browser.view(driver, width=width, height=height, dark=dark)
            driver.get(f"http://127.0.0.1:{port}/{address}")
            driver.save_screenshot(str(FOLDER / name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
