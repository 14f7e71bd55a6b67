"""Idempotency for Django REST framework."""

from idempotency.rest_framework.mixin import IdempotencyMixin

__all__ = ["IdempotencyMixin"]
