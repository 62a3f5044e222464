import holdfast.api as api
import holdfast.api.server as server
import holdfast.integrations.mcp as mcp
import holdfast.telemetry as telemetry
import holdfast.ui as ui

MODULES: dict[str, tuple[str, str]]

__all__ = ["MODULES", "api", "mcp", "server", "telemetry", "ui"]
