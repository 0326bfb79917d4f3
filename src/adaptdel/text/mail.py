"""The text of an email: what filters are trained on and what their certificates are about.

How an email is packed (MIME parts, encodings, tags) is no part of it: an attacker who changes that alone may change any
number of words at once.
"""

from __future__ import annotations

import re
from codecs import lookup
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import Message
from email.policy import Compat32
from html import unescape
from typing import Any

# Regular expressions, as html.parser of Python 3.11 takes 2.4 seconds for 7,000 tags that do not end. As in a browser,
# a comment ends at --> or --!>, or begins with its end.
_MARKUP = re.compile(
    r"<!--(?:-?>|.*?(?:--!?>|\Z))|<(style|script)\b[^<>]*>.*?(?:</\1\b[^<>]*>?|\Z)|<(/?[a-z][a-z0-9]*)[^<>]*>|<[!?/][^<>]*>",
    re.S | re.I,
)
_INLINE = {"a", "b", "big", "em", "font", "i", "s", "small", "span", "strong", "sub", "sup", "tt", "u", "wbr"}
LONGEST_HEADER = 2**13  # characters: the parameters of one of 900,000 characters take 18 seconds to read


class _ShortHeaders(Compat32):
    def header_source_parse(self, sourcelines: list[str]) -> tuple[str, str]:
        name, value = super().header_source_parse(sourcelines)
        return name, value[:LONGEST_HEADER]


_SHORT_HEADERS = _ShortHeaders()


def mail_text(raw: bytes) -> str:
    """The subject and all text parts of an email, HTML without its tags; of one that cannot be parsed, all of it."""
    try:
        message = message_from_bytes(raw, policy=_SHORT_HEADERS)
        texts = [_part(part) for part in message.walk() if part.get_content_maintype() == "text"]
    except Exception:  # such as RecursionError: the parser promises nothing about hostile emails
        return raw.decode("latin-1")
    return "\n".join([_subject(message), *texts])


def _subject(message: Message) -> str:
    subject = message.get("Subject", "")
    try:
        return str(make_header(decode_header(subject)))
    except (LookupError, ValueError):
        return str(subject).encode("utf-8", "replace").decode()


def _part(part: Message) -> str:
    content: Any = part.get_payload(decode=True) or b""
    try:
        codec = lookup(part.get_content_charset("utf-8")).name
        text = content.decode("latin-1" if codec == "punycode" else codec, "replace")  # that one is quadratic in time
    except (LookupError, ValueError):
        text = content.decode("latin-1")
    if part.get_content_subtype() != "html":
        return str(text)
    return unescape(_MARKUP.sub(_separator, text))


def _separator(markup: re.Match[str]) -> str:
    joins = markup[0].startswith("<!") or (markup[2] or "").lstrip("/").lower() in _INLINE
    return "" if joins else " "
