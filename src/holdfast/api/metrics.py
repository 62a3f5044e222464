"""Metrics as text for Prometheus (§18.3)."""

from __future__ import annotations

from holdfast.engine.look.figures import Figure, Spread, figures
from holdfast.meters import Meter
from holdfast.runtime import Runtime


async def text(rt: Runtime, tenant_id: str | None, meter: Meter | None = None) -> str:
    """Returns all metrics in the text format of Prometheus."""
    lines: list[str] = []
    for each in await figures(rt.store, await rt.look.tally(tenant_id), tenant_id, meter):
        lines.append(f"# HELP {each.name} {each.says}")
        match each:
            case Figure():
                lines.append(f"# TYPE {each.name} {'counter' if each.grows else 'gauge'}")
                lines += [f"{each.name}{_label(each.label, value)} {_number(number)}" for value, number in sorted(each.values.items())]
            case Spread():
                lines.append(f"# TYPE {each.name} histogram")
                seen = 0
                for bound, count in zip([*map(_number, each.of.bounds), "+Inf"], each.of.counts, strict=True):
                    seen += count
                    lines.append(f'{each.name}_bucket{{le="{bound}"}} {seen}')
                lines += [f"{each.name}_sum {each.of.sum:.6f}", f"{each.name}_count {seen}"]
    return "\n".join(lines) + "\n"


def _label(name: str, value: str) -> str:
    if not name:
        return ""
    clean = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{{{name}="{clean}"}}'


def _number(value: float) -> str:
    return f"{value:g}" if value != int(value) else str(int(value))


__all__ = ["text"]
