"""The showcase: the same kill, counted at the receiver. The two programs that need nothing else run here."""

from __future__ import annotations

from examples.mail_twice.__main__ import play


def test_a_plain_script_sends_the_mail_twice() -> None:
    assert play("plain") == (2, 2, 2), "drafts, mails, starts: the kill strikes as it should"


def test_on_holdfast_the_mail_is_sent_once() -> None:
    assert play("on_holdfast") == (1, 1, 2)
