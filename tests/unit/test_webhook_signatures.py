"""The Standard Webhooks scheme, and what its library does not say no to by itself."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest
import time_machine
from standardwebhooks import Webhook

from payments.exceptions import NotSigned
from payments.webhooks import signatures

OURS, OTHER = signatures.new_secret(), signatures.new_secret()
BODY = '{"type":"charge.succeeded","é":1}'


def signed(**changes: str) -> dict[str, str]:
    return signatures.sign(BODY, message_id="evt_1", secret=OURS) | {
        name.replace("_", "-"): value for name, value in changes.items()
    }


def verified(headers: dict[str, str], body: bytes = BODY.encode(), *known: str) -> str:
    return signatures.verified_id(body, headers, known or (OURS,))


def test_what_we_sign_the_library_verifies_and_so_do_we() -> None:
    Webhook(OURS).verify(BODY, signed())
    assert verified(signed()) == "evt_1"


def test_the_example_of_the_scheme_is_signed_as_its_text_says() -> None:
    """From the specification, so that both ends cannot be wrong in the same way."""
    with time_machine.travel(1614265330, tick=False):
        headers = signatures.sign(
            '{"test": 2432232314}',
            message_id="msg_p5jXN8AQM9LWM0D4loKWxJek",
            secret="whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_any_secret_that_is_known_will_do_while_they_are_changed() -> None:
    assert verified(signed(), BODY.encode(), OTHER, OURS) == "evt_1"


def test_one_good_signature_among_several_will_do() -> None:
    others = signatures.sign(BODY, message_id="evt_1", secret=OTHER)["webhook-signature"]
    both = f"{others} {signed()['webhook-signature']}"
    assert verified(signed(webhook_signature=both)) == "evt_1"


def at(moment: float) -> dict[str, str]:
    """Signed at that moment."""
    then = datetime.fromtimestamp(int(moment), UTC)
    signature = Webhook(OURS).sign("evt_1", then, BODY)
    return signed(webhook_timestamp=str(int(moment)), webhook_signature=signature)


@pytest.mark.parametrize("age", [-290, 290])
def test_five_minutes_are_borne_either_way(age: int) -> None:
    assert verified(at(time.time() - age)) == "evt_1"


HOSTILE = {
    "of another secret": {
        "webhook_signature": signatures.sign(BODY, message_id="evt_1", secret=OTHER)[
            "webhook-signature"
        ]
    },
    "for another id": {"webhook_id": "evt_2"},
    "none": {"webhook_signature": ""},
    "no id": {"webhook_id": ""},
    "no time": {"webhook_timestamp": ""},
    "of no version": {"webhook_signature": "abc"},
    "of another version": {"webhook_signature": "v2,abcd"},
    "asymmetric": {"webhook_signature": "v1a,abcd"},
    "two commas": {"webhook_signature": "v1,ab,cd"},
    "no base64": {"webhook_signature": "v1,é"},
    "empty": {"webhook_signature": "v1,"},
    "blanks": {"webhook_signature": "   "},
    "time is no number": {"webhook_timestamp": "now"},
    "time is NaN": {"webhook_timestamp": "nan"},
    "time is endless": {"webhook_timestamp": "inf"},
    "time is enormous": {"webhook_timestamp": "9" * 400},
    "time is long ago": {"webhook_timestamp": "1"},
    "time is before time": {"webhook_timestamp": "-1e300"},
    "id with a line in it": {"webhook_id": "evt_1\nX: y"},
    "id that is too long": {"webhook_id": "x" * 256},
}


@pytest.mark.parametrize("changes", HOSTILE.values(), ids=HOSTILE)
def test_a_signature_that_is_wrong_in_any_way_is_not_one(changes: dict[str, str]) -> None:
    with pytest.raises(NotSigned):
        verified(signed(**changes))


@pytest.mark.parametrize("age", [-310, 310, 24 * 3600])
def test_a_good_signature_that_is_too_old_or_too_new_is_not_one(age: int) -> None:
    with pytest.raises(NotSigned, match=r"too (old|new)"):
        verified(at(time.time() - age))


@pytest.mark.parametrize(
    "body", [BODY.replace("1", "2"), BODY + " ", BODY.replace(",", ", "), "", "\\u00e9"]
)
def test_the_bytes_are_signed_and_not_what_they_mean(body: str) -> None:
    with pytest.raises(NotSigned):
        verified(signed(), body.encode())


def test_a_body_that_is_no_text_is_not_signed() -> None:
    with pytest.raises(NotSigned):
        verified(signed(), b"\xff\xfe")


def test_without_a_secret_nothing_is_signed() -> None:
    with pytest.raises(NotSigned, match="No secret"):
        signatures.verified_id(BODY.encode(), signed(), [])


def test_secrets_are_long_and_each_is_another() -> None:
    made = {signatures.new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(signatures.is_secret(secret) for secret in made)


@pytest.mark.parametrize("text", ["", "whsec_", "whsec_c2hvcnQ=", "secret of the gateway", "é"])
def test_what_is_too_short_or_no_base64_is_no_secret(text: str) -> None:
    assert not signatures.is_secret(text)
