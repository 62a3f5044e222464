"""A campaign: one mail to each of many people, at most so many a second, and each mail once whatever crashes.

    holdfast run examples/campaign.py --input '{"recipients": ["ada@example.org", "grace@example.org"]}' --thread spring
    holdfast limits set mail --per-second 50 --burst 10

Kill it in the middle and resume it: it goes on with the mails that were not sent. A mail that was on its way when the process died is looked
up by its key, and sent only if the mail service never got it.
"""

from __future__ import annotations

import json
from pathlib import Path

from holdfast import Absent, Context, Happened, Limit, flow

OUTBOX = Path("sent.jsonl")
LIMITS = {"mail": Limit(per_second=50, burst=10)}


def send_mail(to: str, subject: str, *, idempotency_key: str) -> str:
    """Sends one mail. The line stands for a mail service."""
    with OUTBOX.open("a") as out:
        out.write(json.dumps({"key": idempotency_key, "to": to, "subject": subject}) + "\n")
    return f"sent to {to}"


def was_sent(key: str, to: str, subject: str) -> Happened | Absent:
    """Asks the mail service for a mail by its key."""
    sent = [json.loads(line) for line in OUTBOX.read_text().splitlines()] if OUTBOX.exists() else []
    return Happened(f"sent to {to}") if any(mail["key"] == key for mail in sent) else Absent()


@flow("campaign", version="1")
async def campaign(ctx: Context, recipients: list[str], subject: str = "Spring is here") -> str:
    async def one(to: str) -> str:
        sent: str = await ctx.effect(send_mail, to, subject, verify=was_sent, limit="mail")
        return sent

    done = await ctx.map(one, recipients, concurrency=16)
    return f"{len(done)} mails sent"
