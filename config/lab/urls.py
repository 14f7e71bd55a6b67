"""Routes of the retry lab."""

from django.urls import path

from config.lab import views

app_name = "lab"

urlpatterns = [
    path("", views.lab, name="lab"),
    path("ledger", views.ledger, name="ledger"),
]
