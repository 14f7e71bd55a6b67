"""The product for the chaos run: retries that many merchants on one machine need are granted."""

from config.settings import *  # noqa: F403
from config.settings import IDEMPOTENCY, PAYMENTS_GATEWAY

IDEMPOTENCY = {
    **IDEMPOTENCY,
    "RETRY_BUDGET_RATIO": 1.0,
    "RETRY_BUDGET_FLOOR": 2000,
    # The recovery at the end does not pause between its tries, so they are many.
    "RESUME_ATTEMPTS": 1000,
}
PAYMENTS_GATEWAY = {**PAYMENTS_GATEWAY, "BACKEND": "tests.chaos.gateway.SoonTrusted"}
