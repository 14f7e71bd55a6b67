"""URLs of the reference project."""

from django.contrib import admin
from django.urls import include, path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/schema/", SpectacularAPIView.as_view(), name="schema"),
    path("api/docs/", SpectacularSwaggerView.as_view(url_name="schema"), name="docs"),
    # First payments: it has pages for its own codes under problems/ too.
    path("", include("payments.urls")),
    path("problems/", include("idempotency.http.urls")),
]
