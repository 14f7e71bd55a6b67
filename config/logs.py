"""Logs of the reference project: one line an event, structured, and no secret in any of them."""

from collections.abc import Mapping
from typing import Any

import structlog
from django.dispatch import receiver
from django.utils.functional import SimpleLazyObject, empty
from django_structlog.signals import bind_extra_request_finished_metadata
from structlog.typing import EventDict, Processor

from idempotency.redaction import redactor

#: Secrets of `payments` by their shape: API keys, and what webhooks are signed with.
redact = redactor(r"\bsk_\w{4,}", r"\bwhsec_[\w+/=-]{4,}")

_shared: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
]


def hide_secrets(logger: object, method: str, event: EventDict) -> EventDict:
    """The last step before a line is written: take what is secret out of everything that is text
    or will be."""
    return {name: _hidden(value) for name, value in event.items()}


def _hidden(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {redact(str(name)): _hidden(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_hidden(inner) for inner in value]
    return redact(value if isinstance(value, str) else repr(value))


_renderers: dict[str, Processor] = {
    "console": structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    ),
    "json": structlog.processors.JSONRenderer(),
}


def logging_config(*, level: str, form: str) -> dict[str, Any]:
    """`LOGGING` for lines in that form: "json" or "console"."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    formatter = {
        "()": structlog.stdlib.ProcessorFormatter,
        # The library logs with the standard library; both kinds come out in one shape.
        "foreign_pre_chain": [*_shared, structlog.stdlib.ExtraAdder()],
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            # Here and not in a renderer, so that tracebacks are text when secrets are looked for.
            structlog.processors.format_exc_info,
            hide_secrets,
            _renderers[form],
        ],
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"structured": formatter},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            # Django would mail every error to ADMINS, with all that its request said.
            "django": {"handlers": []},
            "django.server": {"propagate": True, "handlers": []},
            # A line for each request that it sends, with the whole URL.
            "httpx2": {"level": "WARNING"},
            # Two lines a request at INFO, and at DEBUG bodies with secrets in them.
            "stripe": {"level": "WARNING"},
        },
    }


@receiver(bind_extra_request_finished_metadata)
def _name_the_user(request: Any, log_kwargs: dict[str, Any], **_: object) -> None:
    """Who it was, where that is known by now. `django_structlog` would ask the database at every
    request that bears a session, and fail with it."""
    user = request.__dict__.get("user")
    known = not isinstance(user, SimpleLazyObject) or user._wrapped is not empty
    if user is not None and known:
        log_kwargs["user_id"] = user.pk
