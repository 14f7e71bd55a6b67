"""Serializer fields that take nothing they would have to convert.

REST framework's own accept `"10"` and `10.0` for a number and `5` for a text. A payment API must
not guess: a JSON value has the right type or is refused. Form fields are always text, so there the
text is parsed. The limits in the OpenAPI document are the ones enforced here.
"""

import json
import re
from typing import Any

from django.core.validators import RegexValidator
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.exceptions import ParseError
from rest_framework.fields import empty
from rest_framework.utils import html

from payments import currencies, parsers
from payments.models import MAX_AMOUNT

#: As compact JSON in UTF-8.
MAX_METADATA_BYTES = 16_384

_ANY_TEXT = re.compile(r"\A[^\x00]*\Z")
_DIGITS = re.compile(r"[0-9]{1,12}")


class Present(serializers.Field[Any, Any, Any, Any]):
    """An empty form field is an empty text, not an absent field.

    Otherwise `amount=` would refund everything.
    """

    def get_value(self, dictionary: Any) -> Any:
        return dictionary.get(self.field_name, empty)


class TextField(Present, serializers.CharField):
    """A string as it came: no number taken for one, no space trimmed."""

    default_error_messages = {"pattern": "This is not of the expected form."}

    def __init__(self, *, pattern: "re.Pattern[str]" = _ANY_TEXT, **options: Any) -> None:
        super().__init__(trim_whitespace=False, **options)
        self.validators.append(RegexValidator(pattern, self.error_messages["pattern"]))

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        return data


class AmountField(Present, serializers.IntegerField):
    """A whole number of minor units, of one to twelve digits."""

    def __init__(self, **options: Any) -> None:
        super().__init__(min_value=1, max_value=MAX_AMOUNT, **options)

    def to_internal_value(self, data: Any) -> int:
        if _from_form(self) and isinstance(data, str) and _DIGITS.fullmatch(data):
            return int(data)
        # Not isinstance: a bool is an int to Python.
        if type(data) is not int:
            self.fail("invalid")
        return data


class FlagField(Present, serializers.BooleanField):
    """`true` or `false`, and nothing that Python takes for either."""

    def to_internal_value(self, data: Any) -> bool:
        if _from_form(self) and data in ("true", "false"):
            return bool(data == "true")
        if type(data) is not bool:
            self.fail("invalid", input=data)
        return data


@extend_schema_field({"type": "string", "enum": list(currencies.CODES)})
class CurrencyField(Present, serializers.ChoiceField):
    """An active ISO 4217 code, in capitals."""

    def __init__(self, **options: Any) -> None:
        super().__init__(choices=currencies.CODES, **options)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str) or data not in currencies.EXPONENTS:
            self.fail("invalid_choice", input=data)
        return data


@extend_schema_field({"type": "object", "additionalProperties": True})
class MetadataField(Present):
    """Any JSON object of bounded size; in a form, its JSON text.

    Members are kept in the order of their names and a whole number without its fraction (`1.0` is
    `1`), so that the answer that creates a charge equals the one that reads it back from `jsonb`.
    """

    default_error_messages = {
        "not_object": "Expected a JSON object.",
        "too_large": f"As JSON it is longer than {MAX_METADATA_BYTES} bytes.",
    }

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        if _from_form(self) and isinstance(data, str):
            data = self._parse(data)
        if not isinstance(data, dict):
            self.fail("not_object")
        value: dict[str, Any] = _canonical(data)
        if len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()) > (
            MAX_METADATA_BYTES
        ):
            self.fail("too_large")
        return value

    def to_representation(self, value: dict[str, Any]) -> dict[str, Any]:
        representation: dict[str, Any] = _canonical(value)
        return representation

    def _parse(self, text: str) -> Any:
        try:
            return parsers.loads(text)
        except ParseError as error:
            raise serializers.ValidationError(error.detail) from None


@extend_schema_field({"type": "string", "format": "json-object"})
class MetadataTextField(MetadataField):
    """The same in a form, for the OpenAPI document: the text of a JSON object."""


def _from_form(field: serializers.Field[Any, Any, Any, Any]) -> bool:
    return html.is_html_input(getattr(field.root, "initial_data", None))


def _canonical(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _canonical(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [_canonical(member) for member in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value
