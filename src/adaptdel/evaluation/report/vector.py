"""Figures as part of a page: without an address, and in the page's colours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

_DROPPED = (
    re.compile(r"<metadata>.*?</metadata>", re.DOTALL),
    re.compile(r"<style\b.*?</style>", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r'\s+xmlns(:\w+)?="[^"]*"'),
)


def inline_svg(text: str, name: str, label: str, colours: Mapping[str, str]) -> str:
    """An SVG file as an element of a page.

    Nothing in it names an address, its identifiers are its own and do not change from one time to the next, and each
    colour is replaced by what ``colours`` says, so that it can follow the theme.
    """
    text = text[text.index("<svg") :]
    for pattern in _DROPPED:
        text = pattern.sub("", text)
    text = _own_identifiers(text.replace("xlink:href", "href"), name)
    for colour, replacement in colours.items():
        text = text.replace(colour, replacement)
    box = re.search(r'viewBox="[^"]*"', text)
    start = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(label)}">'
    return re.sub(r"<svg\b[^>]*>", lambda _: start, text, count=1).strip()


def _own_identifiers(text: str, name: str) -> str:
    """Number the identifiers that are pointed at, and drop the others."""
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    pointed = {one or other for one, other in used}
    found = [identifier for identifier in re.findall(r'\bid="([^"]*)"', text) if identifier in pointed]
    new = {identifier: f"{name}-{place}" for place, identifier in enumerate(dict.fromkeys(found))}
    text = re.sub(r'\s+id="([^"]*)"', lambda m: f' id="{new[m[1]]}"' if m[1] in new else "", text)
    text = re.sub(r'href="#([^"]+)"', lambda m: f'href="#{new.get(m[1], m[1])}"', text)
    return re.sub(r"url\(#([^)]+)\)", lambda m: f"url(#{new.get(m[1], m[1])})", text)
