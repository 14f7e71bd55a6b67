"""What the mixin adds to the OpenAPI document: the request header, the replay marker, our problems.

Needs drf-spectacular (the ``openapi`` extra). Without it the mixin keeps DRF's own schema
inspector.
"""

from __future__ import annotations

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ComponentRegistry, ResolvedComponent
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter

from idempotency.core.errors import IdempotencyError
from idempotency.core.keys import HEADER, MAX_LENGTH
from idempotency.core.policies import Policy
from idempotency.core.responses import REPLAY_MARKER
from idempotency.http import attempts, deadlines
from idempotency.http.problems import CONTENT_TYPE, PROBLEMS

_PROBLEM = "IdempotencyProblem"

#: A bare key, or a quoted string, in which a backslash escapes a quote or a backslash.
_KEY_PATTERN = r'^([!#-+\--:<-\[\]-~]+|"([!#-\[\]-~]|\\["\\])+")$'

_PROBLEM_SCHEMA = {
    "type": "object",
    "description": "A problem document (RFC 9457) of the idempotency layer.",
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "retry": {
            "type": "string",
            "enum": ["same_key", "new_key", "never"],
            "description": "Whether the request may be sent again, and with which key.",
        },
        "resource": {
            "type": "string",
            "description": "The Location of the first answer, where it could not be stored.",
        },
    },
    "required": ["type", "title", "status", "detail", "code", "retry"],
}


class IdempotencyAutoSchema(AutoSchema):
    """drf-spectacular's inspector, with the idempotency layer's part added to protected methods."""

    registry: ComponentRegistry

    def get_override_parameters(self) -> list[Any]:
        parameters: list[Any] = list(super().get_override_parameters())
        policy = self._policy()
        if policy is None:
            return parameters
        return [
            *parameters,
            _key_parameter(policy),
            _deadline_parameter(),
            *([_attempt_parameter()] if self._has_retry_budget() else []),
            _marker_parameter(),
            _retry_after_parameter(),
        ]

    def get_description(self) -> str:  # type: ignore[override]
        description: str = super().get_description()
        policy = self._policy()
        if policy is None:
            return description
        return "\n\n".join(part for part in (description, *_notes(policy)) if part)

    def _get_response_bodies(self, direction: Any = "response") -> Any:
        bodies = super()._get_response_bodies(direction)
        if self._policy() is None:
            return bodies
        self.registry.register_on_missing(
            ResolvedComponent(  # type: ignore[no-untyped-call]
                name=_PROBLEM,
                type=ResolvedComponent.SCHEMA,
                schema=_PROBLEM_SCHEMA,
                object=_PROBLEM,
            )
        )
        for status, codes in _codes_by_status().items():
            bodies[status] = _with_problem(bodies.get(status), codes)
            headers = self._get_response_headers_for_code(status, direction)
            if headers:
                bodies[status]["headers"] = headers
        return bodies

    def _has_retry_budget(self) -> bool:
        # Here, because the throttle is for views with the mixin, whose schema this is.
        from idempotency.rest_framework.throttles import RetryBudgetThrottle

        return any(issubclass(each, RetryBudgetThrottle) for each in self.view.throttle_classes)

    def _policy(self) -> Policy | None:
        """The policy of the method at hand; None when the method takes no key."""
        view: Any = self.view
        policy: Policy = view.get_idempotency_policy()
        return policy if view._takes_key(self.method, policy) else None


def _codes_by_status() -> dict[str, list[str]]:
    codes: dict[str, list[str]] = {}
    errors: dict[type[IdempotencyError], Any] = PROBLEMS
    for error, (status, _) in errors.items():
        codes.setdefault(str(status), []).append(error.code)
    return codes


def _with_problem(body: dict[str, Any] | None, codes: list[str]) -> dict[str, Any]:
    """The view's own answer under a status, or ours, or either."""
    ours = {"$ref": f"#/components/schemas/{_PROBLEM}"}
    body = dict(body or {"description": ""})
    content = dict(body.get("content", {}))
    theirs = content.get(CONTENT_TYPE, {}).get("schema")
    content[CONTENT_TYPE] = {"schema": ours if theirs is None else {"anyOf": [theirs, ours]}}
    listed = ", ".join(f"`{code}`" for code in codes)
    body["description"] = " ".join(filter(None, [body["description"], f"Idempotency: {listed}."]))
    return {**body, "content": content}


def _key_parameter(policy: Policy) -> OpenApiParameter:
    field = policy.body_field
    also = f" The body field `{field}` may carry it instead." if field else ""
    return OpenApiParameter(
        name=HEADER,
        type={
            "type": "string",
            "minLength": policy.key_min_length,
            "maxLength": MAX_LENGTH,
            **({"format": "uuid"} if policy.key_uuid_only else {"pattern": _KEY_PATTERN}),
        },
        location=OpenApiParameter.HEADER,
        # With a body field the header alone is not required.
        required=policy.required and field is None,
        description=(
            "Names this request, so that repeating it is safe: 1 to 255 visible ASCII characters, "
            f"bare or as a quoted string. Send a new UUID for each new request.{also}"
        ),
    )


# Both are plain strings: one that cannot be read is ignored, never an error.


def _deadline_parameter() -> OpenApiParameter:
    return OpenApiParameter(
        name=deadlines.HEADER,
        type=OpenApiTypes.STR,
        location=OpenApiParameter.HEADER,
        description=(
            "Milliseconds for which the caller waits. It can only shorten the server's own limit; "
            "with none left the answer is 504 and nothing ran."
        ),
    )


def _attempt_parameter() -> OpenApiParameter:
    return OpenApiParameter(
        name=attempts.HEADER,
        type=OpenApiTypes.STR,
        location=OpenApiParameter.HEADER,
        description=(
            "`2; max=3` for the second of three attempts. It lets the server bound retries; stored "
            "answers are served all the same."
        ),
    )


def _marker_parameter() -> OpenApiParameter:
    return OpenApiParameter(
        name=REPLAY_MARKER,
        type={"type": "string", "enum": ["true"]},
        location=OpenApiParameter.HEADER,
        response=["200", "201", "202", "204", "400", "402", "404", "410", "422"],
        description="Present when this is the first answer, replayed. Absent on a first answer.",
    )


def _retry_after_parameter() -> OpenApiParameter:
    return OpenApiParameter(
        name="Retry-After",
        type=OpenApiTypes.INT,
        location=OpenApiParameter.HEADER,
        response=["409", "503"],
        description="Seconds to wait before the same request with the same key makes sense.",
    )


def _notes(policy: Policy) -> list[str]:
    notes = []
    if policy.fingerprint_exclude:
        names = ", ".join(f"`{name}`" for name in sorted(policy.fingerprint_exclude))
        notes.append(
            f"These fields do not tell two requests with one key apart: {names}. "
            "A retry that differs only in them gets the first answer."
        )
    return notes
