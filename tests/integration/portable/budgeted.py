"""The suite's views under a retry budget, and their URLs."""

from __future__ import annotations

from django.urls import include, path

from idempotency.rest_framework import RetryBudgetThrottle
from tests.integration.portable import views


class ThingView(views.ThingView):
    throttle_classes = (RetryBudgetThrottle,)


class BodyFieldView(views.BodyFieldView):
    throttle_classes = (RetryBudgetThrottle,)


class BuyView(views.BuyView):
    throttle_classes = (RetryBudgetThrottle,)


class GuardedView(views.GuardedView):
    throttle_classes = (views.IsThrottled, RetryBudgetThrottle)


class ShoutedKeyView(ThingView):
    """Finds its key where nobody else looks, and does not say so to the throttle."""

    def get_idempotency_key(self, policy: object) -> str | None:
        return self.request.headers.get("Shouted-Key")


class UnkeyedView(views.UnprotectedView):
    throttle_classes = (RetryBudgetThrottle,)


urlpatterns = [
    path("things", ThingView.as_view()),
    path("body-field", BodyFieldView.as_view()),
    path("buy", BuyView.as_view()),
    path("guarded", GuardedView.as_view()),
    path("shouted", ShoutedKeyView.as_view()),
    path("unprotected", UnkeyedView.as_view()),
    path("problems/", include("idempotency.http.urls")),
]
