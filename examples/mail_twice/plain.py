"""A plain script. Whoever restarts it starts it from the beginning."""

from __future__ import annotations

from examples.mail_twice.mail import draft, send

if __name__ == "__main__":
    text = draft("Ada")
    send("Ada", text)
