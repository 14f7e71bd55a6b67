"""Idempotency for Django REST framework."""

from idempotency.rest_framework.mixin import IdempotencyMixin
from idempotency.rest_framework.throttles import RetryBudgetThrottle

__all__ = ["IdempotencyMixin", "RetryBudgetThrottle"]
