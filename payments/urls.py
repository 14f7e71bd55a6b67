"""Routes of the product. Include them at the root, before `idempotency.http.urls`."""

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from payments import health, problems, views
from payments.metrics import metrics
from payments.problem_pages import problem_page
from payments.webhooks.views import GatewayEventsView, WebhookEndpointView

app_name = "payments"


class AnyText(StringConverter):
    """Whatever a client may call a key: slashes too, and what could never be one."""

    regex = r"[\s\S]+"


register_converter(AnyText, "anytext")

urlpatterns = [
    path("v1/charges", views.ChargesView.as_view(), name="charges"),
    path("v1/charges/<str:charge_id>", views.ChargeView.as_view(), name="charge"),
    path("v1/charges/<str:charge_id>/refunds", views.RefundsView.as_view(), name="refunds"),
    path("v1/refunds/<str:refund_id>", views.RefundView.as_view(), name="refund"),
    path("v1/transfers", views.TransfersView.as_view(), name="transfers"),
    path("v1/transfers/<str:transfer_id>", views.TransferView.as_view(), name="transfer"),
    path("v1/balance", views.BalanceView.as_view(), name="balance"),
    path(
        "v1/webhook-endpoints/<str:endpoint_id>",
        WebhookEndpointView.as_view(),
        name="webhook-endpoint",
    ),
    path("v1/gateway-events", GatewayEventsView.as_view(), name="gateway-events"),
    path("v1/idempotency-keys/<anytext:key>", views.KeyView.as_view(), name="idempotency-key"),
    re_path(r"^v1/.*", views.NotFoundView.as_view(), name="nothing"),
    # Only our own codes: the idempotency layer's pages are under the same path.
    re_path(rf"^problems/(?P<code>{'|'.join(problems.TYPES)})/$", problem_page, name="problem"),
    path("healthz", health.LivenessView.as_view(), name="healthz"),
    path("readyz", health.ReadinessView.as_view(), name="readyz"),
    path("metrics", metrics, name="metrics"),
]
