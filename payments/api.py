"""What all views of the API share: who calls, how bodies are read, how errors look."""

from collections.abc import Callable
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from rest_framework import status
from rest_framework.exceptions import APIException, ParseError, UnsupportedMediaType
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.permissions import IsAuthenticated
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from idempotency.http.bodies import is_whole
from payments.authentication import ApiKeyAuthentication, merchant_of
from payments.exception_handler import exception_handler
from payments.models import Merchant
from payments.parsers import StrictFormParser, StrictJSONParser, StrictMultiPartParser
from payments.serializers import StrictSerializer


class RequestTooLarge(APIException):
    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body is larger than this service reads."


class AcceptHeaderOnly(DefaultContentNegotiation):
    """Content negotiation without `?format=`, which would turn a typing error into a 404."""

    def filter_renderers(self, renderers: Any, format: str) -> Any:
        return renderers


class OneSpellingJSONRenderer(JSONRenderer):
    """Equal content, equal bytes, whoever writes it: a strong ETag promises that.

    An operation's answer is written without a view, in ASCII and without indentation.
    """

    ensure_ascii = True
    compact = True

    def get_indent(self, accepted_media_type: str, renderer_context: Any) -> None:
        return None


class PaymentsView(APIView):
    """An API view whose every answer is JSON, and every error a problem."""

    authentication_classes = [ApiKeyAuthentication]
    permission_classes = [IsAuthenticated]
    parser_classes = [StrictJSONParser, StrictFormParser, StrictMultiPartParser]
    renderer_classes = [OneSpellingJSONRenderer]
    content_negotiation_class = AcceptHeaderOnly
    metadata_class = None

    @property
    def merchant(self) -> Merchant:
        return merchant_of(self.request)

    def initialize_request(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Request:
        # Text is UTF-8. A charset parameter may name any of Python's codecs, `hex` included.
        request.encoding = "utf-8"
        return super().initialize_request(request, *args, **kwargs)

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        # Forms are bounded by Django; a JSON body is read by nobody who counts.
        if content_length(request) > (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or float("inf")):
            raise RequestTooLarge
        if "*" in (request.content_type or ""):
            # A parser's media type would match it, and the key's fingerprint would be of another.
            raise UnsupportedMediaType(request.content_type)

    def options(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Response:
        """Which methods there are, in `Allow`; what they take is in the OpenAPI document."""
        return Response(status=status.HTTP_204_NO_CONTENT)

    def get_exception_handler(self) -> Callable[..., Response | None]:
        return exception_handler


class MerchantScope:
    """Two API keys of one merchant are one scope. First among the bases: the mixin has a default
    of its own."""

    request: Request

    def get_idempotency_tenant(self) -> str:
        return merchant_of(self.request).public_id


def key_id_of(request: Request) -> int | None:
    """The record of the request's idempotency key, to be kept with what the request writes."""
    execution = getattr(request, "idempotency", None)
    return None if execution is None else execution.key_id


def validated(serializer: type[StrictSerializer], request: Request) -> dict[str, Any]:
    """The body's data. Raises `ValidationError` (400)."""
    data = request.data
    if _has_lost_its_body(request):
        raise ParseError("There is a Content-Type and no body. Send the body with its length.")
    if not is_whole(request._request):
        # The views that take a key have refused it before; this is for the others.
        raise ParseError("Less of the body arrived than Content-Length announces.")
    filled = serializer(data=data)
    filled.is_valid(raise_exception=True)
    valid: dict[str, Any] = dict(filled.validated_data)
    return valid


def _has_lost_its_body(request: Request) -> bool:
    """Whether there is a body's type and nothing else. A server reads nothing of a body that comes
    without a length, and "nothing" means all that is left of a charge. Only a form may be empty,
    where its length says so."""
    kind, length = request.META.get("CONTENT_TYPE", ""), request.META.get("CONTENT_LENGTH")
    if kind.startswith(StrictFormParser.media_type):
        return not length
    typed = kind.startswith((StrictJSONParser.media_type, StrictMultiPartParser.media_type))
    return typed and not content_length(request)


def content_length(request: Request) -> int:
    """How long the body says to be; 0 where it does not say."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    return int(length) if length.isdecimal() else 0
