"""Cron lines and time zones: what schedules are computed with. cronsim comes with the extra ``cron``; intervals do without it."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections.abc import Iterator

from holdfast.core.errors import InvalidInput, UsageError

try:
    import cronsim
except ImportError:  # said to whoever asks for a cron line, below
    cronsim = None  # type: ignore[assignment]


class Calendar:
    """Times of this machine's time zone database, and of cronsim."""

    def zone(self, name: str) -> dt.tzinfo:
        """The rules of an IANA time zone.

        Raises:
            InvalidInput: this machine does not know it.
        """
        try:
            return zoneinfo.ZoneInfo(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as e:
            hint = "Europe/Berlin, America/New_York, UTC; pip install 'holdfast[cron]' brings the zones where a machine has none"
            raise InvalidInput(f"{name!r} is not a known IANA time zone", hint=hint, code="zone_unknown") from e

    def cron(self, line: str, after: dt.datetime) -> Iterator[dt.datetime]:
        """The times that a line of five fields names, strictly after one: by elapsed time if that has a zone, else by the calendar.

        Raises:
            InvalidInput: it is no such line. UsageError: cronsim is not installed.
        """
        if cronsim is None:
            raise UsageError("cron lines need cronsim", hint="pip install 'holdfast[cron]'; or every=timedelta(…)", code="cron_missing")
        try:
            return cronsim.CronSim(line, after)
        except (cronsim.CronSimError, AssertionError, TypeError, ValueError) as e:  # it does not foresee every odd line
            hint = "minute hour day month weekday: '0 9 * * MON-FRI', '*/15 * * * *', '30 2 1 * *'"
            raise InvalidInput(f"{line!r} is not a cron line: {str(e).lower()}", hint=hint, code="bad_cron") from e


CALENDAR = Calendar()
