"""URLs of the reference project."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

urlpatterns = [
    path("", RedirectView.as_view(pattern_name="docs")),
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
    path("", include("payments.urls")),
    # The pages behind the `type` of a problem.
    path("problems/", include("idempotency.http.urls")),
]

if settings.DEMO:
    urlpatterns.append(path("lab/", include("config.lab.urls")))
