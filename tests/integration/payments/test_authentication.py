"""Whose request it is."""

from __future__ import annotations

import uuid

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from payments import merchants
from payments.models import ApiKey
from tests.integration.payments.api import Api, problem


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer sk_live_wrong",
        "Bearer sk_live_wrong twice",
        "Basic c2s6c2s=",
        "Bearer \xff\xfe",
        "Bearer " + "s" * 5000,
        "sk_live_alone",
    ],
)
def test_a_request_without_a_good_key_is_told_how_to_authenticate(
    db: None, header: str | None
) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = Client().get("/v1/balance", headers=headers)
    problem(response, 401, "not_authenticated")
    assert response["WWW-Authenticate"] == 'Bearer realm="payments"'


def test_the_scheme_is_written_in_any_case(acme: Api) -> None:
    for scheme in ("bearer", "BEARER"):
        headers = {"Authorization": f"{scheme} {acme.secret}"}
        assert Client().get("/v1/balance", headers=headers).status_code == 200


def test_only_the_digest_of_a_secret_is_stored(acme: Api) -> None:
    key = ApiKey.objects.get(merchant=acme.merchant)
    assert acme.secret.startswith(key.prefix)
    assert len(key.prefix) < len(acme.secret) / 2
    assert acme.secret not in str(vars(key))


def test_a_revoked_key_is_refused_and_its_sister_still_works(acme: Api) -> None:
    _, other = merchants.issue_api_key(merchant=acme.merchant)
    merchants.revoke_api_key(key=ApiKey.objects.get(digest=merchants.digest(acme.secret)))
    problem(acme.get("/v1/balance"), 401, "not_authenticated")
    assert Api(acme.merchant, other).get("/v1/balance").status_code == 200


def test_an_operator_revokes_a_key_that_leaked(acme: Api, admin_client: Client) -> None:
    key = ApiKey.objects.get(merchant=acme.merchant)
    data = {"action": "revoke", "_selected_action": [key.pk]}
    for said in ("1 API key revoked.", "0 API keys revoked."):
        page = admin_client.post("/admin/payments/apikey/", data, follow=True)
        assert said in page.content.decode()
    problem(acme.get("/v1/balance"), 401, "not_authenticated")
    assert LogEntry.objects.get().change_message == "Revoked"


def test_whoever_may_only_see_keys_revokes_none(acme: Api, client: Client) -> None:
    viewer = User.objects.create_user("viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_apikey"))
    client.force_login(viewer)
    key = ApiKey.objects.get(merchant=acme.merchant)
    data = {"action": "revoke", "_selected_action": [key.pk]}
    client.post("/admin/payments/apikey/", data, follow=True)
    assert acme.get("/v1/balance").status_code == 200


def test_a_revoked_key_gets_no_replay(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    key = uuid.uuid4().hex
    assert acme.transfer(globex, 1, key=key).status_code == 201
    merchants.revoke_api_key(key=ApiKey.objects.get(merchant=acme.merchant))
    problem(acme.transfer(globex, 1, key=key), 401, "not_authenticated")


def test_two_keys_of_one_merchant_share_one_scope(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    _, other = merchants.issue_api_key(merchant=acme.merchant)
    key = uuid.uuid4().hex
    first = acme.transfer(globex, 1, key=key)
    again = Api(acme.merchant, other).transfer(globex, 1, key=key)
    assert again.content == first.content
    assert again["Idempotent-Replayed"] == "true"


def test_one_key_of_two_merchants_is_two_requests(acme: Api, globex: Api) -> None:
    acme.fund(1000)
    globex.fund(1000)
    key = uuid.uuid4().hex
    first = acme.transfer(globex, 1, key=key)
    second = globex.transfer(acme, 1, key=key)
    assert [first.status_code, second.status_code] == [201, 201]
    assert first.json()["id"] != second.json()["id"]


def test_a_fresh_secret_is_long_and_random(acme: Api) -> None:
    secrets = {merchants.issue_api_key(merchant=acme.merchant)[1] for _ in range(50)}
    assert len(secrets) == 50
    assert all(secret.startswith("sk_live_") and len(secret) == 40 for secret in secrets)
