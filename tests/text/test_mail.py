"""The text of emails: what a reader sees, of hostile ones as well, in bounded time."""

from __future__ import annotations

import time
from email.message import EmailMessage

import pytest

from adaptdel.text.mail import mail_text


def test_subject_and_text_parts_are_decoded() -> None:
    message = EmailMessage()
    message["Subject"] = "Grüße an alle"
    message.set_content("plain ä text")
    message.add_alternative("<p>Buy via<b></b>gra<!-- salad --><br>n&auml;chste<style>p {}</style> Woche</p>", "html")
    message.add_attachment(b"\x00binary", "application", "pdf")
    assert mail_text(message.as_bytes()).split() == [
        "Grüße", "an", "alle", "plain", "ä", "text", "Buy", "viagra", "nächste", "Woche"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<!--> pills", "pills"),  # a comment that browsers end at once
        ("<!-- a --!> pills", "pills"),
        ("a < b <3 pills", "a < b <3 pills"),
        ("<a title='x'>pi</a>lls<script>no</script>", "pills"),
    ],
)
def test_what_a_browser_shows_is_not_left_out(html: str, shown: str) -> None:
    assert mail_text(b"Content-Type: text/html; charset=utf-8\n\n" + html.encode()).split() == shown.split()


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xff\xfe\x00" * 1000,
        b"Subject: =?nothing?b?a?= \xff\n\nx",
        b"Content-Type: text/plain; charset=\xff\x00\n\n\xff",
        b"Content-Type: text/plain; charset=punycode\n\nabc-" + b"9za" * 100_000,
        b"Content-Type: text/plain" + b";" * 300_000 + b"\n\nx",
        b"Content-Type: text/html\n\n" + b"<a " * 100_000,
        b"Content-Type: text/html\n\n" + b"<!--" * 100_000,
        b"".join(b"Content-Type: multipart/mixed; boundary=a%d\n\n--a%d\n" % (n, n) for n in range(5000)),
    ],
)
def test_hostile_emails_are_read_in_bounded_time(raw: bytes) -> None:
    started = time.process_time()
    mail_text(raw).encode("utf-8", "surrogatepass")
    assert time.process_time() - started < 2
