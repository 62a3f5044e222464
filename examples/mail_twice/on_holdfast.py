"""The same on Holdfast. The attempt to send is on record before the act; after the crash the server is asked what happened."""

from __future__ import annotations

import asyncio
import sys

from examples.mail_twice.mail import draft, send, was_sent
from holdfast import Absent, Context, Happened, Runtime, flow


def look_up(key: str, customer: str, text: str) -> Happened | Absent:
    found = was_sent(key)
    return Absent() if found is None else Happened(found)


@flow("mail", version="1")
async def mail(ctx: Context, customer: str) -> str:
    text = await ctx.step(draft, customer)
    sent: str = await ctx.effect(send, customer, text, verify=look_up)
    return sent


async def main(store: str) -> None:
    async with Runtime(store, skills=[mail]) as rt:
        if not await rt.recover():
            await rt.run(mail, "Ada")


if __name__ == "__main__":
    asyncio.run(main(f"sqlite:///{sys.argv[1]}.holdfast"))
