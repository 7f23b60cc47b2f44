"""A headless Chromium, driven through selenium, and a message for machines without it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

NEEDED = ("chromium", "chromedriver")


def missing_browser() -> str:
    """Return a message that names the missing programs, or an empty string."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if not missing:
        return ""
    return (
        f"NOT TRIED IN A BROWSER: {' and '.join(missing)} is missing. Install: apt-get install "
        "chromium chromium-driver; "
        "then run the tests of tests/console again."
    )


@contextmanager
def chromium() -> Iterator[Chrome]:
    """Run a headless Chromium until the block ends."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    sandbox = (
        ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    )  # Chromium refuses to run as root otherwise
    for option in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        *sandbox,
    ):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def read_browser_log(driver: Any) -> list[Any]:
    """Return the browser's log entries since the last call."""
    return list(driver.get_log("browser"))


def set_viewport(driver: Chrome, *, width: int, height: int = 900, dark: bool = False) -> None:
    """Set the width of the page in CSS pixels and its colour scheme."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
