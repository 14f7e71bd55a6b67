"""The page behind each problem's ``type``."""

from __future__ import annotations

import json
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from idempotency.core.errors import CATALOGUE, IdempotencyError
from idempotency.http.problems import PROBLEMS, problem_document


@require_safe
def problem(request: HttpRequest, code: str) -> HttpResponse:
    """What happened, and what to do next."""
    by_code = {error.code: error for error in CATALOGUE}
    if code not in by_code:
        raise Http404(f"No problem is named {code!r}.")
    context = {
        "problem": _describe(by_code[code], request),
        "problems": [_describe(error, request) for error in CATALOGUE],
    }
    return render(request, "idempotency/problem.html", context)


def _describe(error: type[IdempotencyError], request: HttpRequest) -> dict[str, Any]:
    status, title = PROBLEMS[error]
    guidance = {
        "same_key": _("Send the same request again with the same key, after Retry-After seconds."),
        "new_key": _("Correct the request and send it with a new key."),
        "never": _("Do not send it again. Look the result up, or ask the operator of the service."),
    }
    return {
        "code": error.code,
        "title": title,
        "status": status,
        "retry": error.retry,
        "detail": error.default_detail,
        "guidance": guidance[error.retry],
        "example": json.dumps(problem_document(error(), request), indent=2, ensure_ascii=False),
    }
