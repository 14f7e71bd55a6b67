"""One dict, one table of defaults, one frozen object."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from idempotency import conf
from idempotency.conf import DEFAULTS, Settings


@pytest.fixture
def configure(settings: Any) -> Any:
    def change(**choices: Any) -> Settings:
        settings.IDEMPOTENCY = choices
        return conf.settings()

    return change


def test_the_app_works_without_any_setting(settings: Any) -> None:
    del settings.IDEMPOTENCY

    assert conf.settings().ttl == timedelta(days=1)
    assert conf.settings().lease == timedelta(seconds=30)


def test_every_default_is_a_field_and_every_field_has_a_default() -> None:
    fields = {field.name.upper() for field in dataclasses.fields(Settings)}

    assert fields == set(DEFAULTS)


def test_settings_are_read_once_and_again_when_they_change(configure: Any) -> None:
    first = configure(LEASE=10)
    assert conf.settings() is first

    assert configure(LEASE=20).lease == timedelta(seconds=20)


def test_durations_are_seconds_or_timedeltas(configure: Any) -> None:
    read = configure(TTL=timedelta(hours=2), LEASE=0.25, WAIT=0)

    assert (read.ttl, read.lease, read.wait) == (
        timedelta(hours=2),
        timedelta(milliseconds=250),
        timedelta(0),
    )


def test_limits_are_whole_minor_units_by_currency(configure: Any) -> None:
    assert configure().four_eyes_above is None
    assert dict(configure(FOUR_EYES_ABOVE={"EUR": 0, "*": 5}).four_eyes_above) == {"EUR": 0, "*": 5}
    for wrong in (1000, {"EUR": 1.5}, {"EUR": -1}, {978: 1}, {"EUR": True}, "EUR"):
        with pytest.raises(ImproperlyConfigured, match="FOUR_EYES_ABOVE"):
            configure(FOUR_EYES_ABOVE=wrong)


def test_several_values_become_a_tuple(configure: Any) -> None:
    read = configure(METHODS=["POST"], FINGERPRINT_EXCLUDE={"note"}, STORED_STATUSES=[422])

    assert (read.methods, read.fingerprint_exclude) == (("POST",), ("note",))
    assert read.stored_statuses == (422,)
    assert configure().stored_statuses is None


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"ttl": 1}, "Unknown names in IDEMPOTENCY: ttl"),
        ({"LEASE": True}, r"IDEMPOTENCY\['LEASE'\] must be seconds"),
        ({"LEASE": "30"}, r"IDEMPOTENCY\['LEASE'\] must be seconds"),
        ({"TTL": None}, r"IDEMPOTENCY\['TTL'\] must be seconds"),
        ({"SCOPE": "tenants"}, "must be one of route, tenant, not 'tenants'"),
        ({"METHODS": "POST"}, "must be a list or a tuple, not 'POST'"),
        ({"STORED_STATUSES": 422}, "must be a list or a tuple, not 422"),
        ({"RETRY_BUDGET_RATIO": -0.1}, r"\['RETRY_BUDGET_RATIO'\] must be a number from 0 to 1000"),
        ({"RETRY_BUDGET_RATIO": float("nan")}, "must be a number from 0 to 1000, not nan"),
        ({"RETRY_BUDGET_FLOOR": 1.5}, "must be a whole number from 0 to 1e"),
        ({"RETRY_BUDGET_FLOOR": True}, "must be a whole number from 0 to 1e"),
        ({"RETRY_BUDGET_WINDOW": 0}, "must be a whole number from 1 to 3600, not 0"),
        ({"RETRY_BUDGET_WINDOW": timedelta(minutes=1)}, "must be a whole number from 1 to 3600"),
        ({"MAX_DEADLINE": "30"}, r"IDEMPOTENCY\['MAX_DEADLINE'\] must be seconds"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(
    configure: Any, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(ImproperlyConfigured, match=words):
        configure(**choices)


def test_the_settings_cannot_be_changed_behind_djangos_back() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        conf.settings().lease = timedelta(0)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("secret", "expected"), [("text", b"text"), (b"bytes", b"bytes"), (None, b"the project's")]
)
def test_downstream_keys_have_a_secret_of_their_own_or_the_projects(
    settings: Any, configure: Any, secret: Any, expected: bytes
) -> None:
    settings.SECRET_KEY = "the project's"

    assert configure(SECRET=secret).secret_bytes == expected
