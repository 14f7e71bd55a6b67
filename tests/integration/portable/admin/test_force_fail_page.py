"""The page that asks before a force-fail: which keys it names, and what it warns of."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from idempotency.models import IdempotencyKey
from tests.integration.portable.admin.rows import token

MakeKey = Callable[..., IdempotencyKey]
LIST = "/admin/idempotency/idempotencykey/"
FORCE_FAIL = f"{LIST}force-fail/"


def test_the_action_of_the_list_asks_about_the_ticked_keys_and_no_others(
    operator: Client, make_key: MakeKey
) -> None:
    ticked, other = make_key(key="ticked"), make_key(key="other")
    answer = operator.post(
        f"{LIST}?attention=stuck",
        {
            "action": "force_fail_selected",
            "_selected_action": [str(ticked.pk)],
            "select_across": "1",
            "index": "0",
        },
    )
    assert answer.status_code == 302
    assert answer["Location"] == (
        f"{FORCE_FAIL}?key={ticked.pk}&_changelist_filters=attention%3Dstuck"
    )
    page = operator.get(answer["Location"]).content.decode()
    assert token(ticked) in page
    assert token(other) not in page
    assert {key.state for key in IdempotencyKey.objects.all()} == {"processing"}


def test_the_action_is_not_offered_without_the_permission(
    viewer: Client, operator: Client, make_key: MakeKey
) -> None:
    key = make_key()
    assert b"force_fail_selected" in operator.get(LIST).content
    assert b"force_fail_selected" not in viewer.get(LIST).content
    data = {"action": "force_fail_selected", "_selected_action": [key.pk], "index": "0"}
    assert FORCE_FAIL not in viewer.post(LIST, data).get("Location", "")


def test_settled_keys_are_named_and_left_out(operator: Client, make_key: MakeKey) -> None:
    done, running = make_key("succeeded", key="done"), make_key(key="running")
    page = operator.get(f"{FORCE_FAIL}?key={done.pk}&key={running.pk}").content.decode()
    assert "Already settled, and left alone" in page
    assert token(done) not in page
    assert token(running) in page
    only = operator.get(f"{FORCE_FAIL}?key={done.pk}").content.decode()
    assert "There is nothing to force-fail" in only
    assert 'name="reason"' not in only


WARNING = "Something may have happened outside this database"


@pytest.mark.parametrize(
    ("state", "fields", "warned"),
    [
        ("processing", {}, False),
        ("processing", {"lease": timedelta(minutes=-1)}, False),
        ("processing", {"recovery_point": "prepared"}, True),
        ("in_doubt", {}, True),
    ],
)
def test_the_page_warns_where_an_outside_effect_may_have_happened(
    operator: Client, make_key: MakeKey, state: str, fields: dict[str, Any], warned: bool
) -> None:
    page = operator.get(FORCE_FAIL, {"key": make_key(state, **fields).pk}).content.decode()
    assert (WARNING in page) is warned


def test_the_page_says_when_freeing_would_lead_back_into_doubt(
    operator: Client, make_key: MakeKey
) -> None:
    context = {"operation": "nobody.knows", "ttl": 1.0, "context": {}}
    key = make_key("in_doubt", recovery_point="prepared", context=context)
    page = operator.get(FORCE_FAIL, {"key": key.pk}).content.decode()
    assert "freed, a retry leads into doubt again" in page
    plain = operator.get(FORCE_FAIL, {"key": make_key().pk}).content.decode()
    assert "freed, a retry leads into doubt again" not in plain
