from django.db import models
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from payments.webhooks.signatures import new_secret


class WebhookEndpoint(models.Model):
    """Where a merchant wants to be told. The merchant chooses the id, so a PUT needs no key."""

    merchant = models.ForeignKey(
        "payments.Merchant",
        on_delete=models.PROTECT,
        related_name="webhook_endpoints",
        db_index=False,
    )
    endpoint_id = models.CharField(_("id"), max_length=64)
    url = models.CharField(_("URL"), max_length=2048)
    enabled = models.BooleanField(
        _("enabled"),
        default=True,
        help_text=_("Off when its merchant says so, or when it answered 410 Gone."),
    )
    #: As it is, because each message is signed with it.
    secret = models.CharField(_("secret"), max_length=64, default=new_secret, editable=False)
    created = models.DateTimeField(_("created"), auto_now_add=True)
    updated = models.DateTimeField(_("updated"), auto_now=True)

    class Meta:
        verbose_name = _("webhook endpoint")
        verbose_name_plural = _("webhook endpoints")
        constraints = [
            models.UniqueConstraint(
                fields=["merchant", "endpoint_id"], name="payments_webhookendpoint_id_unique"
            ),
        ]

    def __str__(self) -> str:
        return self.endpoint_id

    def get_absolute_url(self) -> str:
        return reverse("payments:webhook-endpoint", args=[self.endpoint_id])

    @property
    def destination(self) -> str:
        """Its name among the destinations of the outbox."""
        return f"{self.merchant.public_id}/{self.endpoint_id}"
