"""Reports of runs: the folders that `adaptdel report` wrote, served as they are."""

from __future__ import annotations

import hashlib
import hmac
import mimetypes
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from adaptdel.serve.problems import Problem

INDEX = "index.html"
LINKED = "/linked-reports/"
LINK_SECONDS = 3600  # for which a link opens a report without the token
OWN_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]+)"')


def check_report(folder: Path) -> Path:
    """Return the folder of a report, or raise."""
    if not (folder / INDEX).is_file():
        raise ValueError(f"{folder}: must be the folder of a report, such as adaptdel report writes")
    return folder.resolve()


class ReportLinks:
    """Addresses that open one report without the token, for a time: a browser that follows a link sends no token.

    An address holds the time at which it ends, and a code of that time and of the name of the report. The key of the
    code comes from the token, so that servers with the same token accept each other's links, and it takes work to
    compute, so that who has seen a link cannot try tokens quickly.

    Args:
        token: the token of the server.
    """

    def __init__(self, token: str) -> None:
        self._key = hashlib.scrypt(token.encode(), salt=b"adaptdel: links to reports", n=2**14, r=8, p=1)

    def address(self, name: str) -> str:
        """The address of a report from now on."""
        end = str(int(time.time()) + LINK_SECONDS)
        return f"{LINKED}{end}-{self._code(end, name)}/{quote(name, safe='')}/"

    def opens(self, path: str) -> bool:
        """Whether a path, decoded, is an address that was given out and has not ended yet."""
        match = re.fullmatch(rf"{LINKED}([0-9]{{1,12}})-([0-9a-f]{{64}})/([^/]+)/.*", path, re.DOTALL)
        if match is None:
            return False
        end, code, name = match.groups()
        known = hmac.compare_digest(code, self._code(end, name))
        return known and time.time() < int(end) <= time.time() + LINK_SECONDS

    def _code(self, end: str, name: str) -> str:
        message = f"{end}/{name}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, message, hashlib.sha256).hexdigest()


def report_list(reports: Mapping[str, Path], links: ReportLinks | None) -> dict[str, Any]:
    """The names and addresses of the reports."""
    addresses = {name: f"/reports/{quote(name, safe='')}/" for name in reports}
    return {
        "reports": [
            {"name": name, "url": url, "link": url if links is None else links.address(name)}
            for name, url in addresses.items()
        ]
    }


def report_file(reports: Mapping[str, Path], name: str, path: str) -> tuple[bytes, dict[str, str]]:
    """The content of a file of a report and its headers; a `Problem` unless the file is inside the folder."""
    if name not in reports:
        raise Problem(404, f"there is no report {name!r:.80}")
    folder = reports[name]
    missing = Problem(404, f"the report {name!r:.80} has no file {path!r:.80}")
    if "\0" in path:
        raise missing
    try:
        file = (folder / (path or INDEX)).resolve()
        if not file.is_relative_to(folder) or not file.is_file():
            raise missing
        content = file.read_bytes()
    except OSError:  # such as a name that is too long
        raise missing from None
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    headers = {"Content-Type": f"{kind}; charset=utf-8" if kind.startswith("text/") else kind}
    if kind == "text/html":
        headers["Content-Security-Policy"] = _policy(content)
    return content, headers


def _policy(page: bytes) -> str:
    """The policy that the page of a report states itself, and that no other page may frame it."""
    own = OWN_POLICY.search(page.decode("utf-8", "replace"))
    stated = "default-src 'none'; style-src 'unsafe-inline'" if own is None else own[1].replace("&#39;", "'")
    return f"{stated}; img-src 'self' data:; frame-ancestors 'none'"
