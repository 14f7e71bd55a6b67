from django.urls import include, path

from tests.integration.portable import views

urlpatterns = [
    path("things", views.ThingView.as_view()),
    path("things/<int:parent>/parts", views.ThingView.as_view()),
    path("required", views.RequiredView.as_view()),
    path("unprotected", views.UnprotectedView.as_view()),
    path("plain", views.plain),
    path("problems/", include("idempotency.http.urls")),
]
