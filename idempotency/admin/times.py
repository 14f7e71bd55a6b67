"""Points in time and spans as operators read them: UTC, and how far from now."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.utils.translation import gettext as _


def about(duration: timedelta) -> str:
    """A duration in its largest unit, rounded down: ``25 s``, ``3 min``, ``4 h``, ``2 d``."""
    seconds = int(abs(duration).total_seconds())
    if seconds < 60:
        return _("%d s") % seconds
    if seconds < 3600:
        return _("%d min") % (seconds // 60)
    if seconds < 48 * 3600:
        return _("%d h") % (seconds // 3600)
    return _("%d d") % (seconds // 86400)


def span(duration: timedelta) -> str:
    """A duration in its two largest units: ``25 s``, ``3 min 12 s``, ``4 h 3 min``, ``2 d 5 h``."""
    seconds = int(abs(duration).total_seconds())
    if seconds < 60:
        return _("%d s") % seconds
    if seconds < 3600:
        return _("%(min)d min %(s)d s") % {"min": seconds // 60, "s": seconds % 60}
    minutes = seconds // 60
    if minutes < 24 * 60:
        return _("%(h)d h %(min)d min") % {"h": minutes // 60, "min": minutes % 60}
    hours = minutes // 60
    return _("%(d)d d %(h)d h") % {"d": hours // 24, "h": hours % 24}


def relative(at: datetime, now: datetime) -> str:
    """``3 min 12 s ago`` or ``in 25 s``."""
    if at <= now:
        return _("%s ago") % span(now - at)
    return _("in %s") % span(at - now)


def utc(at: datetime) -> str:
    """Never the viewer's zone: an incident is told in one."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
