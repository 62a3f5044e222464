"""Runs' streams held against the AI SDK's own schema of a chunk (npm ``ai``, ``uiMessageChunkSchema``), and read by its own reader (must show 6).

    python -m tests.streams.ai_sdk --node-modules DIR

``DIR`` is where ``npm install ai`` put its packages ($AI_SDK). Each way in which a run can end is streamed once. What must hold: the schema takes each
chunk, and ``readUIMessageStream`` makes one message of them whose text is what was told. A few seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from holdfast import Runtime
from holdfast.protocols import MODES, Vercel
from tests.streams.test_protocols import skill

WAYS = ("straight", "fail", "approve", "cancel")
CHECK = """
import { createRequire } from 'node:module';
const ai = await import(createRequire(process.argv[2] + '/x').resolve('ai'));
let text = '';
for await (const piece of process.stdin) text += piece;
const schema = typeof ai.uiMessageChunkSchema === 'function' ? ai.uiMessageChunkSchema() : ai.uiMessageChunkSchema;
const out = {};
for (const [way, chunks] of Object.entries(JSON.parse(text))) {
  const wrong = [], errors = [];
  for (const chunk of chunks) {
    const read = await schema.validate(chunk);
    if (!read.success) wrong.push(JSON.stringify(chunk) + ': ' + read.error);
  }
  let message = null;
  const stream = new ReadableStream({ start(c) { for (const chunk of chunks) c.enqueue(chunk); c.close(); } });
  try {
    for await (const m of ai.readUIMessageStream({ stream, onError: e => errors.push(String(e)) })) message = m;
  } catch (e) { wrong.push(String(e)); }
  const told = (message ? message.parts : []).filter(p => p.type === 'text').map(p => p.text).join('');
  out[way] = { chunks: chunks.length, wrong, errors, told };
}
console.log(JSON.stringify(out));
"""


async def wire(way: str) -> list[dict[str, Any]]:
    """The chunks of a run that ends so."""
    graph = skill()
    made: list[dict[str, Any]] = []
    async with Runtime("memory:", skills=[graph]) as rt:
        encoder: Vercel | None = None
        async for part in rt.run_stream(graph, {"how": way}, modes=MODES, thread_id="t"):
            encoder = encoder or Vercel(part.run_id, "t")
            made += encoder.encode(part)
            if part.mode == "events" and part.data.type == "run.waiting_for_human":
                await (rt.approve(part.run_id) if way == "approve" else rt.cancel(part.run_id))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--node-modules", default=os.environ.get("AI_SDK"), metavar="DIR")
    given = parser.parse_args()
    if given.node_modules is None:
        parser.error("where are the AI SDK's packages? npm install ai, then --node-modules DIR")
    wires = {way: asyncio.run(wire(way)) for way in WAYS}
    command = ["node", "--input-type=module", "-e", CHECK, "-", str(Path(given.node_modules).resolve())]
    told = subprocess.run(command, input=json.dumps(wires), capture_output=True, text=True, timeout=120, check=False)
    if told.returncode:
        print(told.stderr[-3000:])
        return 1
    failed = 0
    for way, found in json.loads(told.stdout.splitlines()[-1]).items():
        whole = "".join(c["delta"] for c in wires[way] if c["type"] == "text-delta")
        wrong = found["wrong"] + ([] if found["told"] == whole else [f"the message says {found['told']!r}, told was {whole!r}"])
        meant = [f"Error: {c['errorText']}" for c in wires[way] if c["type"] == "error"]
        wrong += [] if found["errors"] == meant else [f"errors {found['errors']}, told were {meant}"]
        failed += len(wrong)
        print(f"{way}: {found['chunks']} chunks, wrong {len(wrong)}", *wrong, sep="\n  ")
    print(f"asked {len(wires)}, chunks {sum(map(len, wires.values()))}, wrong {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
