"""The product without its budgets and its breaker, for ``tests.benchmarks.outage``."""

from config.settings import *  # noqa: F403
from config.settings import IDEMPOTENCY, PAYMENTS_GATEWAY

PAYMENTS_GATEWAY = {
    **PAYMENTS_GATEWAY,
    "BACKEND": "tests.benchmarks.outage_gateway.UnboundedGateway",
}
# As many retries as anybody asks for.
IDEMPOTENCY = {**IDEMPOTENCY, "RETRY_BUDGET_RATIO": 1000.0, "RETRY_BUDGET_FLOOR": 1_000_000_000}
