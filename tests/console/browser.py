"""A real headless Chromium, driven through selenium; where there is none, a sentence that says what
was not tried."""

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
    """Return what keeps the browser from being used; nothing if it can be."""
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
    """Run one for as long as this lasts."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    sandbox = (
        ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    )  # it refuses to run as root otherwise
    for one in (
        "--headless=new",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        *sandbox,
    ):
        options.add_argument(one)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        yield driver
    finally:
        driver.quit()


def logged(driver: Any) -> list[Any]:
    """Return what the browser logged since the last time: what it refused, and what failed."""
    return list(driver.get_log("browser"))


def view(driver: Chrome, *, width: int, height: int = 900, dark: bool = False) -> None:
    """Have the page drawn at that width (CSS pixels), light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
