"""The HTTP API (extra ``serve``): ``app(rt)`` is an ASGI application."""

from holdfast.api.app import app

__all__ = ["app"]
