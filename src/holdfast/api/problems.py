"""Errors as problems: one table maps the error tree to statuses; the codes are those of the command line (§16.4)."""

from __future__ import annotations

from holdfast.access import Forbidden, Unauthorized
from holdfast.api.bodies import Problem
from holdfast.core.errors import Conflict, Denied, HoldfastError, NotFound, Rejected, RequestConflict, StoreError, TokenRefused, UsageError

TITLES = {
    400: "Bad request", 401: "Unauthorized", 403: "Forbidden", 404: "Not found", 405: "Method not allowed", 409: "Conflict", 412: "Precondition failed",
    413: "Content too large", 415: "Unsupported media type", 422: "Unprocessable content", 429: "Too many requests", 500: "Internal error",
    503: "Service unavailable",
}
RETRY_SECONDS = 1


class Stopped(HoldfastError):
    """An error of HTTP itself, which has its own status and code."""

    def __init__(self, status: int, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status


_STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (Unauthorized, 401),
    (Forbidden, 403),
    (Denied, 403),
    (TokenRefused, 403),
    (RequestConflict, 422),
    (NotFound, 404),
    (UsageError, 422),
    (Rejected, 409),
    (Conflict, 409),
    (StoreError, 503),
)


def status_of(error: HoldfastError) -> int:
    """Returns the status of an error, which says who must act."""
    if isinstance(error, Stopped):
        return error.status
    if error.code == "queue_full":
        return 429
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)


def problem(error: HoldfastError, run_id: str | None = None) -> Problem:
    status = status_of(error)
    field = getattr(error, "field", "") or getattr(error, "path", "") or None
    return Problem(
        type=f"https://holdfast.dev/problems/{error.code}", title=TITLES.get(status, "Error"), status=status, detail=error.message, code=error.code,
        hint=error.hint or None, run_id=run_id if status != 404 else None, field=str(field) if field else None,
    )


def headers(error: HoldfastError, status: int) -> dict[str, str]:
    """Returns the headers of an error's answer."""
    if status == 401:
        return {"WWW-Authenticate": 'Bearer realm="holdfast"'}
    if status in (429, 503):
        return {"Retry-After": str(max(1, round(getattr(error, "retry_after", RETRY_SECONDS))))}
    return {}
