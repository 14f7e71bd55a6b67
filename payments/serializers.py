"""Request bodies and representations, one class each; both make the OpenAPI document."""

import re
from typing import Any

from rest_framework import serializers
from rest_framework.utils import html

from payments import ids
from payments.fields import (
    AmountField,
    CurrencyField,
    FlagField,
    MetadataField,
    MetadataTextField,
    TextField,
)
from payments.models import Charge, Refund
from payments.webhooks import addresses

ACCOUNT_ID = ids.pattern("acct")
SOURCE = re.compile(r"\A(?:tok_[0-9a-z_]{1,60}|pm_[0-9A-Za-z_]{1,60})\Z")
ENDPOINT_ID = re.compile(r"[0-9A-Za-z_\-]{1,64}")
# The spelling of the key as a body field; `idempotency` reads and checks it before the view runs.
_TOKEN = re.compile(r"\A[\x21-\x7e]{1,255}\Z")


def check_endpoint_id(value: str) -> None:
    """Raises `ValidationError` (400): the client chose it, so it can choose another."""
    if not ENDPOINT_ID.fullmatch(value):
        raise serializers.ValidationError(
            {"id": ["1 to 64 letters, digits, hyphens and underscores."]}
        )


class StrictSerializer(serializers.Serializer[Any]):
    """Refuses what it does not know, so that a misspelt field never means its default."""

    def to_internal_value(self, data: Any) -> Any:
        value = super().to_internal_value(data)
        errors = {name: ["There is no such field."] for name in data if name not in self.fields}
        if html.is_html_input(data):
            errors |= {
                name: ["This is given more than once."]
                for name in data
                if len(data.getlist(name)) > 1
            }
        if errors:
            raise serializers.ValidationError(errors)
        # Not data of the view: the idempotency layer has read it.
        value.pop("client_token", None)
        return value


class ChargeRequest(StrictSerializer):
    """What to charge, and to whom."""

    amount = AmountField(help_text="In minor units of the currency.")
    currency = CurrencyField(help_text="ISO 4217, in capitals.")
    source = TextField(  # type: ignore[assignment]
        pattern=SOURCE, help_text="What to charge: a token of the gateway."
    )
    description = TextField(max_length=500, allow_blank=True, required=False)
    metadata = MetadataField(required=False)
    client_token = TextField(pattern=_TOKEN, required=False)


class ChargeForm(ChargeRequest):
    """The same as a form, for the OpenAPI document: a form field is a text."""

    metadata = MetadataTextField(required=False)


class ChargeChange(StrictSerializer):
    """What can be changed afterwards; `metadata` is replaced whole."""

    description = TextField(max_length=500, allow_blank=True, required=False)
    metadata = MetadataField(required=False)


class ChargeChangeForm(ChargeChange):
    """The same as a form, for the OpenAPI document."""

    metadata = MetadataTextField(required=False)


class RefundRequest(StrictSerializer):
    """How much to give back."""

    amount = AmountField(required=False, help_text="All that is left, when absent.")
    client_token = TextField(pattern=_TOKEN, required=False)


class TransferRequest(StrictSerializer):
    """How much to move, and to whom."""

    to = TextField(pattern=ACCOUNT_ID, help_text="The recipient's account.")
    amount = AmountField(help_text="In minor units of the currency.")
    currency = CurrencyField(help_text="ISO 4217, in capitals.")
    description = TextField(max_length=500, allow_blank=True, required=False)
    client_token = TextField(pattern=_TOKEN, required=False)


class WebhookEndpointRequest(StrictSerializer):
    """Where to send events."""

    url = TextField(
        max_length=2048,
        pattern=addresses.URL,
        error_messages={"pattern": addresses.FORM},
        help_text="https, with a host name that leads to public addresses only.",
    )
    enabled = FlagField(default=True, help_text="Whether events are sent to it.")


class ChargeRepresentation(serializers.Serializer[Charge]):
    id = serializers.CharField(source="public_id")
    status = serializers.ChoiceField(choices=Charge.Status.choices)
    amount = serializers.IntegerField()
    amount_refunded = serializers.IntegerField(help_text="Refunds on their way included.")
    currency = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    metadata = MetadataField()
    decline_code = serializers.SerializerMethodField()
    gateway_reference = serializers.SerializerMethodField()
    created = serializers.DateTimeField()

    def get_decline_code(self, charge: Charge) -> str | None:
        return charge.decline_code or None

    def get_gateway_reference(self, charge: Charge) -> str | None:
        return charge.gateway_reference or None


class RefundRepresentation(serializers.Serializer[Refund]):
    id = serializers.CharField(source="public_id")
    charge = serializers.CharField(source="charge.public_id")
    status = serializers.ChoiceField(choices=Refund.Status.choices)
    amount = serializers.IntegerField()
    currency = serializers.CharField()
    failure_code = serializers.SerializerMethodField()
    gateway_reference = serializers.SerializerMethodField()
    created = serializers.DateTimeField()

    def get_failure_code(self, refund: Refund) -> str | None:
        return refund.failure_code or None

    def get_gateway_reference(self, refund: Refund) -> str | None:
        return refund.gateway_reference or None


class TransferRepresentation(serializers.Serializer[Any]):
    id = serializers.CharField(source="public_id")
    to = serializers.CharField(source="recipient.public_id")
    amount = serializers.IntegerField()
    currency = serializers.CharField()
    description = serializers.CharField(allow_blank=True)
    created = serializers.DateTimeField()

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        # `from` is a word of Python, so it cannot be an attribute.
        fields = super().get_fields()
        sender = serializers.CharField(source="sender.public_id")
        return {"id": fields.pop("id"), "from": sender, **fields}


class WebhookEndpointRepresentation(serializers.Serializer[Any]):
    id = serializers.CharField(source="endpoint_id")
    url = serializers.CharField()
    enabled = serializers.BooleanField()
    created = serializers.DateTimeField()
    updated = serializers.DateTimeField()


class WebhookEndpointWithSecret(WebhookEndpointRepresentation):
    secret = serializers.CharField(help_text="What messages to it are signed with.")


class GatewayEvent(serializers.Serializer[Any]):
    """What the gateway tells. Types that are not known here are recorded and left alone."""

    type = serializers.CharField(help_text="charge.succeeded, charge.declined, refund.succeeded, …")
    data = serializers.DictField(help_text="The entry of the gateway's ledger.")  # type: ignore[assignment]


class BalanceLine(serializers.Serializer[Any]):
    currency = serializers.CharField()
    amount = serializers.IntegerField()


class Balance(serializers.Serializer[Any]):
    data = BalanceLine(many=True)  # type: ignore[assignment]


class ChargePage(serializers.Serializer[Any]):
    data = ChargeRepresentation(many=True)  # type: ignore[assignment]
    next_cursor = serializers.CharField(allow_null=True)


class RefundPage(serializers.Serializer[Any]):
    data = RefundRepresentation(many=True)  # type: ignore[assignment]
    next_cursor = serializers.CharField(allow_null=True)


class KeyState(serializers.Serializer[Any]):
    key = serializers.CharField()
    route = serializers.CharField()
    state = serializers.CharField()
    attempt = serializers.IntegerField()
    status_code = serializers.IntegerField(allow_null=True)
    resource = serializers.CharField(allow_null=True)
    created = serializers.DateTimeField()
    expires = serializers.DateTimeField(allow_null=True)


class Keys(serializers.Serializer[Any]):
    data = KeyState(many=True)  # type: ignore[assignment]


class Health(serializers.Serializer[Any]):
    status = serializers.CharField()


class Readiness(Health):
    checks = serializers.DictField(child=serializers.CharField())
