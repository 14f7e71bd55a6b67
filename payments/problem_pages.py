"""The page behind the `type` of each problem."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from payments import problems


@require_safe
def problem_page(request: HttpRequest, code: str) -> HttpResponse:
    return render(request, "payments/problem.html", {"problem": problems.TYPES[code]})
