"""Route this to give every problem ``type`` a page: ``path("problems/",
include("idempotency.http.urls"))``."""

from __future__ import annotations

from django.urls import path

from idempotency.http import views

app_name = "idempotency"

urlpatterns = [path("<slug:code>/", views.problem, name="problem")]
