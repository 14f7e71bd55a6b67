"""The kit that users get for their own suites: each assertion passes when it should, else fails."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import Group

from idempotency import testing
from tests.integration.portable.api import Api

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.urls("tests.integration.portable.urls"),
]


@pytest.fixture
def api() -> Api:
    return Api()


def test_a_double_click_runs_once_and_is_replayed(api: Api) -> None:
    with testing.assert_runs_once(Group.objects.all()):
        first = api.post("/things", {"amount": 1}, "a")
        again = api.post("/things", {"amount": 1}, "a")
    testing.assert_executed(first)
    testing.assert_replayed(again, of=first)


def test_two_runs_are_not_one(api: Api) -> None:
    def two_requests() -> None:
        with testing.assert_runs_once(Group.objects.all()):
            api.post("/things", {"amount": 1}, "a")
            api.post("/things", {"amount": 1}, "b")

    with pytest.raises(AssertionError, match="found 2"):
        two_requests()


def test_a_first_answer_is_no_replay(api: Api) -> None:
    first = api.post("/things", {"amount": 1}, "a")
    with pytest.raises(AssertionError, match="no replay"):
        testing.assert_replayed(first)


def test_a_replay_and_a_refusal_were_not_executed(api: Api) -> None:
    api.post("/things", {"amount": 1}, "a")
    with pytest.raises(AssertionError, match="is a replay"):
        testing.assert_executed(api.post("/things", {"amount": 1}, "a"))
    with pytest.raises(AssertionError, match="refused"):
        testing.assert_executed(api.post("/things", {"amount": 2}, "a"))


def test_a_replay_of_another_answer_is_told_apart(api: Api) -> None:
    api.post("/things", {"amount": 1}, "a")
    other = api.post("/things", {"amount": 1}, "b")
    with pytest.raises(AssertionError, match="differs"):
        testing.assert_replayed(api.post("/things", {"amount": 1}, "a"), of=other)


def test_a_held_key_is_in_use_and_then_what_it_was(api: Api) -> None:
    first = api.post("/things", {"amount": 1}, "a")
    with testing.hold_key("a"):
        assert api.post("/things", {"amount": 1}, "a").status_code == 409
    testing.assert_replayed(api.post("/things", {"amount": 1}, "a"), of=first)


def test_an_expired_lease_is_taken_over(api: Api) -> None:
    api.post("/things", {"amount": 1}, "a")
    with testing.hold_key("a"):
        testing.expire_lease("a")
        with testing.assert_runs_once(Group.objects.all()):
            testing.assert_executed(api.post("/things", {"amount": 1}, "a"))


def test_an_expired_key_is_a_new_request(api: Api) -> None:
    api.post("/things", {"amount": 1}, "a")
    testing.expire_key("a")
    testing.assert_executed(api.post("/things", {"amount": 2}, "a"))


def test_the_frozen_clock_decides_when_a_key_expires(api: Api) -> None:
    with testing.freeze_clock() as clock:
        api.post("/things", {"amount": 1}, "a")
        clock.advance(timedelta(hours=23, minutes=59))
        testing.assert_replayed(api.post("/things", {"amount": 1}, "a"))
        clock.advance(timedelta(minutes=1))
        testing.assert_executed(api.post("/things", {"amount": 1}, "a"))


@pytest.mark.parametrize("expire", [testing.expire_lease, testing.expire_key])
def test_expiring_what_is_not_there_fails(expire: object) -> None:
    assert callable(expire)
    with pytest.raises(AssertionError, match="nobody"):
        expire("nobody")
