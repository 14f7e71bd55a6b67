"""Celery tasks whose effect happens once, however often they are delivered."""
