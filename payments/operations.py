"""Work with an effect at the gateway, in steps that anybody can resume.

Each step after `prepare` gets only the context, so that a worker that never saw the request can
finish it. Whatever an earlier step found, a charge or refund changes only while it is pending.

A gateway that cannot be asked now is known before anything is written: `prepare` raises
CallNotSent, and all that is left is the key, to be used again.
"""

from collections.abc import Callable
from typing import Any

from rest_framework.request import Request

from idempotency.operations import Amount, Done, Operation, Outcome, Refused, Reply, Unknown
from payments import charges, currencies, exceptions, problems, refunds
from payments.api import key_id_of
from payments.authentication import merchant_of
from payments.exception_handler import problem_of, refusals
from payments.gateways.base import Gateway
from payments.gateways.choice import get_gateway
from payments.models import Charge, Refund
from payments.preconditions import etag
from payments.serializers import ChargeRepresentation, RefundRepresentation


class OfGateway:
    """What the gateway of the settings says, for the class of an operation and its instances."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Operation | None, owner: type[Operation]) -> Any:
        return getattr(get_gateway(), self.name)


class AtGateway(Operation):
    """A call that is in the books of one gateway, and what people may have to decide about it: how
    much it is, and how the gateway ended it."""

    def call(self, context: dict[str, Any], key: str) -> Outcome:
        return self.ask(context, lambda gateway: self.call_at(gateway, context, key))

    def look_up(self, context: dict[str, Any], key: str) -> Outcome:
        return self.ask(context, lambda gateway: self.look_up_at(gateway, context, key))

    def ask(self, context: dict[str, Any], question: Callable[[Gateway], Outcome]) -> Outcome:
        """Ask the gateway of the settings, if it is the one that the operation was prepared for:
        another one would move the money again, or say that none moved."""
        gateway = get_gateway()
        if context["books"] != gateway.books:
            return Unknown(f"it is in the books of {context['books']}, not of {gateway.books}")
        return question(gateway)

    def call_at(self, gateway: Gateway, context: dict[str, Any], key: str) -> Outcome:
        """Make the call."""
        raise NotImplementedError

    def look_up_at(self, gateway: Gateway, context: dict[str, Any], key: str) -> Outcome:
        """Ask what became of it."""
        raise NotImplementedError

    def amount_of(self, context: dict[str, Any]) -> Amount | None:
        # A refund of a release before ours has no currency: it counts as above every limit.
        amount, currency = context["amount"], context.get("currency", "")
        text = currencies.format_amount(amount=amount, currency=currency) if currency else ""
        return Amount(amount, currency, text)

    def result_by_hand(
        self, context: dict[str, Any], *, done: bool, record: str
    ) -> dict[str, Any] | None:
        return {"id": record} if done else {"code": record}


class CreateCharge(AtGateway):
    """Ask the gateway for money; 201, or 402 when it refuses."""

    name = "payments.charge"
    service = "gateway"
    downstream_dedupes = OfGateway("dedupes")
    downstream_dedupes_for = OfGateway("dedupes_for")

    def prepare(self, request: Request) -> dict[str, Any] | Reply:
        arguments = dict(self.arguments)
        source, gateway = arguments.pop("source"), get_gateway()
        with gateway.room_for("charge") as room:
            charge = charges.create_pending(
                merchant=merchant_of(request), key_id=key_id_of(request), **arguments
            )
            room.keep_for(charge.public_id)
        return {
            "base": problems.base_of(request),
            "books": gateway.books,
            "charge": charge.public_id,
            "amount": charge.amount,
            "currency": charge.currency,
            "source": source,
        }

    def call_at(self, gateway: Gateway, context: dict[str, Any], key: str) -> Outcome:
        return gateway.charge(
            amount=context["amount"],
            currency=context["currency"],
            source=context["source"],
            reference=context["charge"],
            key=key,
        )

    def look_up_at(self, gateway: Gateway, context: dict[str, Any], key: str) -> Outcome:
        return gateway.find_charge(reference=context["charge"], key=key)

    def finalize(self, context: dict[str, Any], outcome: Done | Refused) -> Reply:
        if isinstance(outcome, Refused):
            charge = charges.decline(public_id=context["charge"], code=outcome.result["code"])
            return _declined(charge, context["base"])
        charge = charges.succeed(
            public_id=context["charge"], gateway_reference=outcome.result["id"]
        )
        headers = {"Location": charge.get_absolute_url(), "ETag": etag(charge)}
        return Reply(201, dict(ChargeRepresentation(charge).data), headers)

    def withdraw(self, context: dict[str, Any]) -> None:
        charges.withdraw(public_id=context["charge"])


class CreateRefund(AtGateway):
    """Set the amount aside, then ask the gateway to give it back; 201, or 422."""

    name = "payments.refund"
    service = "gateway"
    downstream_dedupes = OfGateway("dedupes")
    downstream_dedupes_for = OfGateway("dedupes_for")

    def prepare(self, request: Request) -> dict[str, Any] | Reply:
        gateway = get_gateway()
        try:
            with gateway.room_for("refund") as room, refusals(of=exceptions.NotFound):
                refund = refunds.create_pending(
                    merchant=merchant_of(request),
                    charge_id=self.arguments["charge"],
                    amount=self.arguments.get("amount"),
                    key_id=key_id_of(request),
                )
                room.keep_for(refund.public_id)
        except (
            exceptions.ChargeNotRefundable,
            exceptions.RefundExceedsCharge,
            exceptions.InsufficientFunds,
        ) as refusal:
            # An answer, and kept. A charge that does not exist is none: that releases the key.
            return _problem(problem_of(refusal, base=problems.base_of(request)))
        return {
            "base": problems.base_of(request),
            "books": gateway.books,
            "refund": refund.public_id,
            "gateway_charge": refund.charge.gateway_reference,
            "amount": refund.amount,
            "currency": refund.currency,
        }

    def call_at(self, gateway: Gateway, context: dict[str, Any], key: str) -> Outcome:
        return gateway.refund(
            charge=context["gateway_charge"],
            amount=context["amount"],
            reference=context["refund"],
            key=key,
        )

    def look_up_at(self, gateway: Gateway, context: dict[str, Any], key: str) -> Outcome:
        return gateway.find_refund(
            charge=context["gateway_charge"], reference=context["refund"], key=key
        )

    def finalize(self, context: dict[str, Any], outcome: Done | Refused) -> Reply:
        if isinstance(outcome, Refused):
            refund = refunds.fail(public_id=context["refund"], code=outcome.result["code"])
            return _refused(refund, context["base"])
        refund = refunds.succeed(
            public_id=context["refund"], gateway_reference=outcome.result["id"]
        )
        headers = {"Location": refund.get_absolute_url()}
        return Reply(201, dict(RefundRepresentation(refund).data), headers)

    def withdraw(self, context: dict[str, Any]) -> None:
        refunds.withdraw(public_id=context["refund"])


def _declined(charge: Charge, base: str) -> Reply:
    return _problem(
        problems.body(
            "card_declined",
            f"The gateway declined the charge: {charge.decline_code}.",
            base=base,
            charge=charge.public_id,
            decline_code=charge.decline_code,
        )
    )


def _refused(refund: Refund, base: str) -> Reply:
    return _problem(
        problems.body(
            "refund_refused",
            f"The gateway refused the refund: {refund.failure_code}.",
            base=base,
            refund=refund.public_id,
            failure_code=refund.failure_code,
        )
    )


def _problem(body: dict[str, Any]) -> Reply:
    return Reply(body["status"], body, content_type=problems.CONTENT_TYPE)
