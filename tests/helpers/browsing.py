"""Pages in a real browser: Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PATIENCE = 300_000  # milliseconds; on a busy machine pages take long


@contextmanager
def browser() -> Iterator[Any]:
    """Skips the tests where there is no browser."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if root else [], timeout=PATIENCE)
        yield found
        found.close()


@contextmanager
def opened(browser: Any, url: str, width: int = 1200, height: int = 900, scheme: str = "light") -> Iterator[Any]:
    """A page whose charts are drawn. It must report no error and ask for nothing but itself."""
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    errors, requests = [], []
    page.on("console", lambda message: errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(url)
    page.wait_for_function("() => document.documentElement.dataset.ready === ''")
    yield page
    context.close()
    assert not errors, errors
    root = url.partition("?")[0]
    assert all(request.partition("?")[0] == root or request == "data:," for request in requests)
