"""From Django's request to what the engine needs: the key, the scope, the fingerprint, the
policy."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from django.contrib.admindocs.views import simplify_regex
from django.core.exceptions import ImproperlyConfigured
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, QueryDict
from django.utils.datastructures import MultiValueDict

from idempotency import redaction
from idempotency.conf import CHOICES, DEFAULTS, choice, duration, sequence, settings
from idempotency.core import fingerprints, keys
from idempotency.core.errors import (
    BodyIncomplete,
    BodyRefused,
    KeyInvalid,
    KeyMissing,
    LengthRequired,
)
from idempotency.core.policies import Policy
from idempotency.http.bodies import is_whole

HEADER_IN_META = f"HTTP_{keys.HEADER.upper().replace('-', '_')}"

#: A key on them is ignored, whatever a policy says: repeating them is safe.
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")

_PRINTABLE = "".join(map(chr, range(32, 127)))

#: What Django's form parsers put in place of bytes that are no UTF-8, so that different bytes
#: become equal. The character itself is refused with them: nobody means it.
REPLACEMENT = "\ufffd"

#: Names a view may set, as ``idempotency_<name>`` on a class or as arguments of the decorator.
POLICY_NAMES = (
    "required",
    "methods",
    "ttl",
    "lease",
    "scope",
    "body_field",
    "busy",
    "wait",
    "fingerprint",
    "fingerprint_exclude",
    "stored_statuses",
    "max_response_bytes",
    "key_min_length",
    "key_uuid_only",
)


def build_policy(choices: Mapping[str, Any]) -> Policy:
    """The policy of a view: its own choices over the settings' defaults."""
    base = settings()
    values = {name: getattr(base, name) for name in POLICY_NAMES} | dict(choices)
    for name in ("ttl", "lease", "wait"):
        values[name] = duration(values[name], f"idempotency_{name}")
    for name in ("methods", "fingerprint_exclude", "stored_statuses"):
        values[name] = sequence(values[name], f"idempotency_{name}")
    for setting, known in CHOICES.items():
        choice(values[setting.lower()], f"idempotency_{setting.lower()}", known)
    values["methods"] = frozenset(method.upper() for method in values["methods"])
    if safe := values["methods"] & SAFE_METHODS:
        raise ImproperlyConfigured(
            f"idempotency_methods holds {', '.join(sorted(safe))}: a key there is always ignored."
        )
    values["fingerprint_exclude"] = frozenset(values["fingerprint_exclude"])
    stored = values["stored_statuses"]
    values["stored_statuses"] = None if stored is None else frozenset(stored)
    return Policy(**values)


def demand_length(request: HttpRequest) -> None:
    """A chunked body without Content-Length reaches Django as an empty one: refuse it before
    anything runs."""
    chunked = "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower()
    if chunked and not request.META.get("CONTENT_LENGTH"):
        raise LengthRequired


def demand_whole(request: HttpRequest) -> None:
    """Refuse a body that was cut off, once it was parsed and before anything runs."""
    if not is_whole(request):
        raise BodyIncomplete


def read_key(request: HttpRequest, data: Any, policy: Policy) -> str | None:
    """The key of a request, from the header or the policy's body field; None when it has none and
    needs none."""
    key = header_key(request, policy)
    if policy.body_field is not None and isinstance(data, Mapping) and policy.body_field in data:
        field = keys.parse_body_field(_single(data, policy.body_field), **_limits(policy))
        redaction.hide(field)
        if key is not None and field != key:
            raise KeyInvalid(
                f"The header {keys.HEADER} and the field {policy.body_field} hold different keys. "
                "Send one of them, or the same key in both."
            )
        key = field
    if key is None and policy.required:
        raise KeyMissing
    return key


def header_key(request: HttpRequest, policy: Policy) -> str | None:
    """The key in the header, which is known before the body is parsed; None when there is none."""
    # Not request.headers: it builds a dict of all of them first.
    header = request.META.get(HEADER_IN_META)
    return None if header is None else keys.parse_header(header, **_limits(policy))


def _limits(policy: Policy) -> dict[str, Any]:
    return {"min_length": policy.key_min_length, "uuid_only": policy.key_uuid_only}


def _single(data: Mapping[str, Any], field: str) -> Any:
    if isinstance(data, MultiValueDict) and len(data.getlist(field)) > 1:
        raise KeyInvalid(f"The field {field} is there twice. Send one idempotency key.")
    return data[field]


def json_object(request: HttpRequest) -> Any:
    """What a JSON body says, for a view that parses it itself; None for any other body."""
    media_type = request.META.get("CONTENT_TYPE", "").split(";")[0].strip().lower()
    if not request.body or not (media_type == "application/json" or media_type.endswith("+json")):
        return None
    try:
        return json.loads(request.body)
    except (ValueError, RecursionError):
        raise BodyRefused from None


def fingerprinter(
    request: HttpRequest,
    body: bytes,
    form: fingerprints.Form | None,
    policy: Policy,
) -> Callable[[int], bytes]:
    """The request's fingerprint as a function of the version."""
    facts = fingerprints.RequestFacts(
        method=request.method or "",
        path=request.path_info,
        query=request.META.get("QUERY_STRING", ""),
        content_type=request.META.get("CONTENT_TYPE", ""),
        body=body,
        form=form,
    )
    exclude = policy.fingerprint_exclude
    if policy.body_field is not None:
        # The key may come in the header first and in the field on the retry: the same request.
        exclude = exclude | {policy.body_field}
    raw = policy.fingerprint == "raw"
    return lambda version: fingerprints.fingerprint(
        facts, version=version, exclude=exclude, raw=raw
    )


def is_form(request: HttpRequest) -> bool:
    """Whether Django or DRF parses the body as a form, so that its bytes may be gone."""
    return request.META.get("CONTENT_TYPE", "").split(";")[0].strip().lower() in FORM_TYPES


def demand_text(request: HttpRequest) -> None:
    """Refuse a form in a charset of which ASCII is no part: a form is written in ASCII. Python's
    codecs that make no text at all, such as ``hex`` and ``idna``, would raise in its parser."""
    try:
        readable = _PRINTABLE.encode().decode(request.encoding or "utf-8", "replace") == _PRINTABLE
    except (LookupError, UnicodeError):
        readable = False
    if not readable:
        raise BodyRefused("The charset of the form cannot be used. Send UTF-8.")


def parse_form(request: HttpRequest) -> tuple[fingerprints.Form | None, QueryDict | None]:
    """The form in a request's body, for a view that is not of REST framework; None for no form.

    Django parses the forms of POST only, and reads their bytes away; of other methods the bytes
    stay for the handler.
    """
    if not is_form(request):
        return None, None
    demand_text(request)
    if request.method == "POST":
        return form_facts(request.POST, request.FILES), request.POST
    if request.content_type == "multipart/form-data":
        fields, files = request.parse_file_upload(request.META, io.BytesIO(request.body))
    else:
        fields, files = QueryDict(request.body, encoding=request.encoding), MultiValueDict()
    try:
        return form_facts(fields, files), fields
    finally:
        # Nobody else gets them, so nobody else closes them.
        for file in itertools.chain.from_iterable(uploads for _, uploads in files.lists()):
            file.close()


def form_facts(
    fields: QueryDict | MultiValueDict[str, str],
    files: MultiValueDict[str, UploadedFile[bytes]],
) -> fingerprints.Form:
    """A parsed form as the fingerprint takes it. Files are read through, and rewound for the
    handler."""
    pairs = [
        (name, value)
        for name, values in fields.lists()
        for value in values
        # DRF puts the files among the data too.
        if isinstance(value, str)
    ]
    if any(REPLACEMENT in name or REPLACEMENT in value for name, value in pairs):
        raise BodyRefused("A field of the form is not valid UTF-8, or holds U+FFFD. Send UTF-8.")
    return fingerprints.Form(
        fields=pairs,
        files=[
            fingerprints.FileFacts(name, file.name or "", file.content_type or "", _digest(file))
            for name, uploads in files.lists()
            for file in uploads
        ],
    )


def _digest(file: UploadedFile[bytes]) -> bytes:
    digest = hashlib.sha256()
    for chunk in file.chunks():
        digest.update(chunk)
    file.seek(0)
    return digest.digest()


def route_of(request: HttpRequest) -> str:
    """Method and URL pattern, ``POST /v1/charges/{id}/refunds``: what a key belongs to."""
    match = request.resolver_match
    pattern = request.path_info if match is None else pattern_of(match.route)
    return f"{request.method} {pattern}"[:255]


@cache
def pattern_of(route: str) -> str:
    """A URL pattern as the OpenAPI document spells it. ``<str:id>`` and ``(?P<id>…)`` become
    ``{id}``."""
    simple = simplify_regex(route)
    while (start := simple.find("<")) >= 0 and (end := simple.find(">", start)) > 0:
        name = simple[start + 1 : end].split(":")[-1]
        simple = f"{simple[:start]}{{{name}}}{simple[end + 1 :]}"
    return simple


def known_choices(source: Any) -> dict[str, Any]:
    """The ``idempotency_*`` attributes of a view that are policy names."""
    return {
        name: getattr(source, f"idempotency_{name}")
        for name in POLICY_NAMES
        if hasattr(source, f"idempotency_{name}")
    }


assert {name.upper() for name in POLICY_NAMES} <= set(DEFAULTS)  # noqa: S101  every choice has a default
