"""A headless Chromium for tests of pages, driven by Playwright. Playwright's own browsers are not downloaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Request, expect, sync_playwright

PROGRAM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed: apt-get install chromium")
PATIENCE = 60_000  # milliseconds to wait for what must appear, on a busy machine
_FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
          "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars"]  # fmt: skip


class Window:
    """One page at a time, with what it requested and complained about since it was opened."""

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._context: BrowserContext | None = None
        self._page: Page | None = None

    @property
    def page(self) -> Page:
        """The page of Playwright."""
        assert self._page is not None
        return self._page

    def open(
        self, address: Path | str, *, width: int = 1280, dark: bool = False, script: bool = True, **options: Any
    ) -> Page:
        """Open a file or an address at a width, and wait until it is there."""
        self.close()
        self.requests, self.complaints = [], []
        self._context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            is_mobile=width < 600,
            color_scheme="dark" if dark else "light",
            java_script_enabled=script,
            **options,
        )
        self._page = self._context.new_page()
        self._page.set_default_timeout(PATIENCE)
        self._page.on("request", self._note)
        self._page.on("console", lambda message: self.complaints.append(message.text))
        self._page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._page.goto(address.resolve().as_uri() if isinstance(address, Path) else address)
        return self._page

    def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        return self.page.evaluate(expression)

    def close(self) -> None:
        """Close the page."""
        if self._context is not None:
            self._context.close()
        self._context = self._page = None

    def _note(self, request: Request) -> None:
        if not request.url.startswith("data:"):
            self.requests.append(request.url)


@contextmanager
def chromium() -> Iterator[Window]:
    """A browser; it is ended at the end."""
    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=PROGRAM, args=_FLAGS)
        window = Window(browser)
        try:
            yield window
        finally:
            window.close()
            browser.close()
