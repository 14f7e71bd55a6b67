"""What can go wrong in the domain. What each means in HTTP is in `payments.exception_handler`.

::

    PaymentError
    ├── NotFound
    │   ├── ChargeNotFound
    │   ├── RefundNotFound
    │   ├── TransferNotFound
    │   ├── WebhookEndpointNotFound
    │   └── AccountNotFound      nobody to transfer to
    ├── SameAccount              a transfer to oneself
    ├── ChargeNotRefundable      its status does not allow a refund
    ├── RefundExceedsCharge      more than what is left of the charge
    ├── InsufficientFunds        the merchant's balance is smaller than the amount
    ├── RefusedUrl               a webhook's URL that is not called
    ├── TooManyEndpoints         a merchant has as many webhook endpoints as it may
    ├── NotSigned                an event that nobody we know has signed
    ├── PreconditionRequired     a change that names no version
    ├── PreconditionFailed       a change of a version that is no longer the present one
    └── NotPending               settled already; only a defect or a forced key leads here
"""


class PaymentError(Exception):
    """Base of all of them; `str(error)` is safe to show to the caller."""


class NotFound(PaymentError):
    """There is none, or it is somebody else's: the caller cannot tell which."""


class ChargeNotFound(NotFound):
    pass


class RefundNotFound(NotFound):
    pass


class TransferNotFound(NotFound):
    pass


class WebhookEndpointNotFound(NotFound):
    pass


class AccountNotFound(NotFound):
    pass


class SameAccount(PaymentError):
    """The sender and the recipient of a transfer must differ."""


class ChargeNotRefundable(PaymentError):
    """Only a charge that succeeded can be refunded."""


class RefundExceedsCharge(PaymentError):
    """The refunds of a charge never exceed its amount, those on their way included."""

    def __init__(self, *, refundable: int) -> None:
        super().__init__(f"What is left to refund is {refundable}.")
        self.refundable = refundable


class InsufficientFunds(PaymentError):
    """The balance in this currency is smaller than the amount."""

    def __init__(self, *, currency: str) -> None:
        super().__init__(f"The balance in {currency} is smaller than the amount.")
        self.currency = currency


class RefusedUrl(PaymentError):
    """A URL that we do not call, because of its form or of where it leads."""


class TooManyEndpoints(PaymentError):
    """Every event is written once for each endpoint, in somebody's transaction."""


class NotSigned(PaymentError):
    """No known secret signed this message within the last five minutes."""


class PreconditionRequired(PaymentError):
    """A change must say which version it changes."""


class PreconditionFailed(PaymentError):
    """The version to be changed is not the present one."""


class NotPending(PaymentError):
    """The charge or refund was settled before; its result is not written twice."""
