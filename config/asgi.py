"""ASGI entry point, for servers that speak it."""

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_asgi_application()

# The broker of what requests enqueue. Below the application: it reads the settings.
import config.celery  # noqa: E402, F401
