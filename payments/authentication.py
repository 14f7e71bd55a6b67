"""`Authorization: Bearer sk_…`: whose request it is."""

from dataclasses import dataclass
from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from payments import merchants
from payments.models import ApiKey, Merchant


@dataclass(frozen=True)
class Caller:
    """What `request.user` is: a merchant, acting through one of its keys."""

    merchant: Merchant
    api_key: ApiKey

    is_authenticated = True

    @property
    def pk(self) -> int:
        """Throttles count per account, whichever key is used."""
        return self.merchant.pk


def merchant_of(request: Request) -> Merchant:
    """The account of an authenticated request."""
    caller: Any = request.user
    assert isinstance(caller, Caller), "authenticated by something else than an API key"  # noqa: S101
    return caller.merchant


class ApiKeyAuthentication(BaseAuthentication):
    """Finds the caller by the digest of the secret. A wrong or revoked secret is 401."""

    def authenticate(self, request: Request) -> tuple[Caller, ApiKey] | None:
        scheme, _, secret = get_authorization_header(request).decode("latin-1").partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = merchants.active_api_key(secret=secret.strip())
        if key is None:
            raise AuthenticationFailed("The API key is wrong, or it was revoked.")
        return Caller(key.merchant, key), key

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="payments"'


class ApiKeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = ApiKeyAuthentication
    name = "apiKey"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "The secret of an API key, `sk_…`.",
        }
