from django.urls import include, path
from rest_framework.routers import SimpleRouter

from tests.integration.portable import views

router = SimpleRouter()
router.register("set", views.ThingViewSet, basename="set")
router.register("some", views.SomeActionsViewSet, basename="some")

urlpatterns = [
    # The project allows other origins here only.
    path("v1/things", views.ThingView.as_view()),
    path("things", views.ThingView.as_view()),
    path("things/<int:parent>/parts", views.ThingView.as_view()),
    path("required", views.RequiredView.as_view()),
    path("unprotected", views.UnprotectedView.as_view()),
    path("guarded", views.GuardedView.as_view()),
    path("formats", views.ManyFormatsView.as_view()),
    path("json-only", views.JsonOnlyView.as_view()),
    path("body-field", views.BodyFieldView.as_view()),
    path("long-key", views.LongKeyView.as_view()),
    path("uuid", views.UuidView.as_view()),
    path("tenant/one", views.TenantScopedView.as_view()),
    path("tenant/two", views.TenantScopedView.as_view()),
    path("excluding", views.ExcludingView.as_view()),
    path("raw", views.RawView.as_view()),
    path("small-answers", views.SmallAnswersView.as_view()),
    path("some-statuses", views.SomeStatusesView.as_view()),
    path("waiting", views.WaitingView.as_view()),
    path("impatient", views.ImpatientView.as_view()),
    path("buy", views.BuyView.as_view()),
    path("buy-once", views.BuyOnceView.as_view()),
    path("buy-small", views.BuySmallView.as_view()),
    path("plain-buy", views.plain_buy),
    path("account", views.AccountView.as_view()),
    path("plain", views.plain),
    path("plain-optional", views.plain_optional),
    path("plain-body-field", views.plain_body_field),
    path("account-keys/<str:key>", views.AccountKeysView.as_view()),
    path("problems/", include("idempotency.http.urls")),
    *router.urls,
]
