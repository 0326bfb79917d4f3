"""A headless Chromium for tests of pages, spoken to through its debugging pipe: no other library is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
_FLAGS = ("--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
          "--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars")  # fmt: skip


class Browser:
    """One page, and what it asked for and complained about since it was last opened."""

    def __init__(self, process: subprocess.Popen[bytes], reading: int, writing: int) -> None:
        self.process, self.reading, self.writing = process, reading, writing
        self.number, self.waiting, self.session = 0, b"", ""
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.loaded = False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and wait for its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.writing, json.dumps(message).encode() + b"\0")
        number = self.number
        while True:
            found = self._next()
            if found.get("id") == number:
                assert "error" not in found, found
                return dict(found["result"])

    def open(self, page: Path, *, width: int, dark: bool, script: bool = True) -> None:
        """Open a file at a width, and wait until it is there."""
        self.requests, self.complaints, self.loaded = [], [], False
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not script)
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.loaded:
            self._next()

    def value(self, expression: str) -> Any:
        """What an expression gives in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path: Path) -> None:
        """Save the whole page as PNG."""
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + 30
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.reading], [], [], max(0, end - time.monotonic()))
            assert ready, "Chromium does not answer"
            self.waiting += os.read(self.reading, 2**20)
        line, _, self.waiting = self.waiting.partition(b"\0")
        found: dict[str, Any] = json.loads(line)
        self._note(found.get("method", ""), found.get("params", {}))
        return found

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" or (method == "Log.entryAdded"):
            self.complaints.append(str(params))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser whose profile is kept in ``folder``; it is ended at the end."""
    assert PROGRAM is not None
    to_read, its_write = os.pipe()
    its_read, to_write = os.pipe()

    def pipes() -> None:  # Chromium reads commands from 3 and answers on 4
        spare = [os.dup(its_read), os.dup(its_write)]
        os.dup2(spare[0], 3)
        os.dup2(spare[1], 4)

    process = subprocess.Popen(
        [PROGRAM, *_FLAGS, f"--user-data-dir={folder}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=pipes,
        close_fds=False,
    )
    os.close(its_read)
    os.close(its_write)
    try:
        yield Browser(process, to_read, to_write)
    finally:
        process.terminate()
        process.wait(10)
        os.close(to_read)
        os.close(to_write)
