"""Entity tags, and changes that name the version they change."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from payments.models import Charge
from tests.integration.payments.api import Api, meeting_at, problem


@pytest.fixture
def charge(acme: Api) -> Charge:
    return Charge.objects.create(merchant=acme.merchant, amount=1000, currency="EUR")


def patch(
    api: Api, charge: Charge, body: Any, *, key: str | None = None, if_match: str | None = None
) -> Any:
    headers = {}
    if key is not None:
        headers["Idempotency-Key"] = key
    if if_match is not None:
        headers["If-Match"] = if_match
    return api.request("PATCH", charge.get_absolute_url(), body, headers=headers)


def test_a_change_makes_a_new_version(acme: Api, charge: Charge) -> None:
    response = patch(acme, charge, {"description": "Tea"}, if_match='"1"')
    assert response.status_code == 200
    assert response["ETag"] == '"2"'
    assert response.json()["description"] == "Tea"
    shown = acme.get(charge.get_absolute_url())
    assert shown["ETag"] == '"2"'
    assert shown.content == response.content


def test_metadata_is_replaced_and_what_is_not_named_stays(acme: Api, charge: Charge) -> None:
    patch(acme, charge, {"description": "Tea", "metadata": {"a": 1}}, if_match='"1"')
    response = patch(acme, charge, {"metadata": {"b": 2}}, if_match='"2"')
    assert response.json()["description"] == "Tea"
    assert response.json()["metadata"] == {"b": 2}


def test_a_change_of_nothing_keeps_the_version(acme: Api, charge: Charge) -> None:
    assert patch(acme, charge, {}, if_match='"1"')["ETag"] == '"1"'


def test_without_a_condition_the_change_is_refused(acme: Api, charge: Charge) -> None:
    problem(patch(acme, charge, {"description": "Tea"}), 428, "precondition_required")
    problem(patch(acme, charge, {"description": "Tea"}, if_match=" "), 428, "precondition_required")


@pytest.mark.parametrize(
    "condition",
    ['"0"', '"2"', 'W/"1"', "1", '"1', '"1" "2"', 'x"1"', '"1"x', '"2", "3"', "*, *", '"01"'],
)
def test_a_condition_that_does_not_name_the_version_is_stale(
    acme: Api, charge: Charge, condition: str
) -> None:
    response = patch(acme, charge, {"description": "Tea"}, if_match=condition)
    problem(response, 412, "precondition_failed")
    charge.refresh_from_db()
    assert (charge.description, charge.version) == ("", 1)


@pytest.mark.parametrize("condition", ["*", '"1"', '"7", "1"', '"a,b" ,"1"', ', "1",', 'W/"9","1"'])
def test_a_condition_may_list_versions_or_take_any(
    acme: Api, charge: Charge, condition: str
) -> None:
    assert patch(acme, charge, {"description": "Tea"}, if_match=condition).status_code == 200


def test_a_replay_never_turns_into_a_stale_version(acme: Api, charge: Charge) -> None:
    key = uuid.uuid4().hex
    first = patch(acme, charge, {"description": "Tea"}, key=key, if_match='"1"')
    patch(acme, charge, {"description": "Coffee"}, if_match='"2"')
    again = patch(acme, charge, {"description": "Tea"}, key=key, if_match='"1"')
    assert again.status_code == 200
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"
    charge.refresh_from_db()
    assert charge.description == "Coffee"


@pytest.mark.parametrize(("condition", "status"), [('"9"', 412), (None, 428)])
def test_a_failed_precondition_frees_the_key(
    acme: Api, charge: Charge, condition: str | None, status: int
) -> None:
    key = uuid.uuid4().hex
    body = {"description": "Tea"}
    assert patch(acme, charge, body, key=key, if_match=condition).status_code == status
    response = patch(acme, charge, body, key=key, if_match='"1"')
    assert response.status_code == 200
    assert "Idempotent-Replayed" not in response


def test_somebody_elses_charge_cannot_be_changed(globex: Api, charge: Charge) -> None:
    problem(patch(globex, charge, {"description": "Tea"}, if_match="*"), 404, "not_found")


@pytest.mark.django_db(transaction=True)
def test_of_two_changes_to_one_version_one_wins(acme: Api, charge: Charge) -> None:
    answers = meeting_at(
        Charge.objects.filter(pk=charge.pk),
        lambda: patch(acme, charge, {"description": "Tea"}, if_match='"1"'),
        lambda: patch(acme, charge, {"description": "Coffee"}, if_match='"1"'),
    )
    assert sorted(answer.status_code for answer in answers) == [200, 412]


@pytest.mark.parametrize("known", ['"1"', 'W/"1"', '"0", "1"', "*"])
def test_a_version_already_known_is_not_sent_again(acme: Api, charge: Charge, known: str) -> None:
    response = acme.get(charge.get_absolute_url(), If_None_Match=known)
    assert response.status_code == 304
    assert response.content == b""
    assert response["ETag"] == '"1"'


@pytest.mark.parametrize("known", ['"2"', "1", ""])
def test_another_version_is_sent(acme: Api, charge: Charge, known: str) -> None:
    assert acme.get(charge.get_absolute_url(), If_None_Match=known).status_code == 200
