"""Building blocks of the OpenAPI document: problems, headers, parameters."""

from typing import Any

from drf_spectacular.extensions import OpenApiSerializerExtension
from drf_spectacular.utils import OpenApiParameter, OpenApiResponse
from rest_framework import serializers

from payments import pagination, problems
from payments.serializers import StrictSerializer


class Problem(serializers.Serializer[Any]):
    """A problem document (RFC 9457). `code` is stable; `detail` is for people."""

    type = serializers.CharField(help_text="The URL of a page about this kind of problem.")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    code = serializers.CharField()
    errors = serializers.DictField(  # type: ignore[assignment]
        child=serializers.ListField(child=serializers.CharField()),
        required=False,
        help_text="What is wrong with each field; `body` stands for the body as a whole.",
    )
    charge = serializers.CharField(required=False, help_text="The declined charge.")
    decline_code = serializers.CharField(required=False)
    refund = serializers.CharField(required=False, help_text="The failed refund.")
    failure_code = serializers.CharField(required=False)
    refundable = serializers.IntegerField(required=False, help_text="What is left to refund.")
    checks = serializers.DictField(child=serializers.CharField(), required=False)


def problem_responses(*codes: str) -> dict[Any, Any]:
    """The responses for these problems, those with one status together."""
    by_status: dict[int, list[problems.ProblemType]] = {}
    for code in codes:
        problem = problems.TYPES[code]
        by_status.setdefault(problem.status, []).append(problem)
    return {
        (status, problems.CONTENT_TYPE): OpenApiResponse(
            Problem, description=" ".join(f"`{it.code}`: {it.title}." for it in listed)
        )
        for status, listed in sorted(by_status.items())
    }


#: What any request of an API key's owner may hear.
ALWAYS = ("not_authenticated", "not_acceptable", "service_unavailable")
#: What any request with a body may hear besides.
BODY = ("malformed_request", "invalid_request", "request_too_large", "unsupported_media_type")


def body_of(serializer: Any, form: Any = None) -> dict[str, Any]:
    """One body in the three media types. In OpenAPI an object in multipart means its JSON text, as
    it does here; in a form it would mean a field for each member, so a form has its own shape.
    """
    return {
        "application/json": serializer,
        "application/x-www-form-urlencoded": form or serializer,
        "multipart/form-data": serializer,
    }


class ClosedBody(OpenApiSerializerExtension):  # type: ignore[no-untyped-call]
    """Says in the document that fields which are not in it are refused."""

    target_class = StrictSerializer
    match_subclasses = True

    def map_serializer(self, auto_schema: Any, direction: Any) -> Any:
        schema = auto_schema._map_serializer(self.target, direction, bypass_extensions=True)
        return {**schema, "additionalProperties": False}


LIMIT = OpenApiParameter(
    "limit",
    {
        "type": "integer",
        "minimum": 1,
        "maximum": pagination.MAX_LIMIT,
        "default": pagination.DEFAULT_LIMIT,
    },
    description="How many items a page has at most.",
)
CURSOR = OpenApiParameter(
    "cursor",
    {
        "type": "string",
        "pattern": pagination.CURSOR.pattern.replace(r"\A", "^").replace(r"\Z", "$"),
    },
    description="`next_cursor` of the page before; absent for the first one.",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    {"type": "string", "pattern": r'^(\*|(W/)?"[!#-~]*"(, *(W/)?"[!#-~]*")*)$'},
    OpenApiParameter.HEADER,
    required=True,
    description="The `ETag` of the version to change, or `*` for any.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="The `ETag` of the version already known: 304 if it is still the present one.",
)


def etag_header(*statuses: int) -> OpenApiParameter:
    return OpenApiParameter(
        "ETag",
        str,
        OpenApiParameter.HEADER,
        response=list(statuses),
        description="The version, as a strong entity tag.",
    )


LOCATION = OpenApiParameter(
    "Location",
    {"type": "string", "format": "uri-reference"},
    OpenApiParameter.HEADER,
    response=[201],
    description="The path of what was created.",
)
ENDPOINT_ID = OpenApiParameter(
    "endpoint_id",
    {"type": "string", "pattern": "^[0-9A-Za-z_-]{1,64}$"},
    OpenApiParameter.PATH,
    description="The client's own name for the endpoint.",
)
SIGNED = [
    OpenApiParameter(name, str, OpenApiParameter.HEADER, required=True, description=what)
    for name, what in (
        ("webhook-id", "The event's own id, the same each time it is sent."),
        ("webhook-timestamp", "When this sending was signed, in seconds of Unix time."),
        ("webhook-signature", "`v1,` and a signature in base64; or several, blanks between them."),
    )
]
KEY = OpenApiParameter(
    "key",
    {"type": "string", "minLength": 1},
    OpenApiParameter.PATH,
    description="The key as it was sent, without quotes.",
)
ROUTE = OpenApiParameter(
    "route", str, description="One route only, spelt like `POST /v1/charges/{charge_id}/refunds`."
)
