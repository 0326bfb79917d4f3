"""A headless Chromium for tests of pages, driven by Playwright. Playwright's own browsers are not downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed: apt-get install chromium")
PATIENCE = 60_000  # milliseconds to wait for what must appear, on a busy machine
_FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
          "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"]  # fmt: skip


class Window:
    """One page at a time, with what it requested and complained about since it was opened."""

    page: Page

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.requests: list[str] = []
        self.complaints: list[str] = []

    def open(self, address: Path | str, *, width: int = 1280, dark: bool = False) -> Page:
        """Open a file or an address at a width, and wait until it is there."""
        for context in self.browser.contexts:
            context.close()
        self.requests, self.complaints = [], []
        context = self.browser.new_context(
            viewport={"width": width, "height": 900}, is_mobile=width < 600, color_scheme="dark" if dark else "light"
        )
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("request", self._note)
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        return self.page

    def _note(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.requests.append(request.url)


@contextmanager
def chromium() -> Iterator[Window]:
    """A browser; it is ended at the end."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=_FLAGS)
        try:
            yield Window(browser)
        finally:
            browser.close()
