"""WSGI entry point: `gunicorn -c config/gunicorn.py config.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
application = get_wsgi_application()

# The broker of what requests enqueue. Below the application: it reads the settings.
import config.celery  # noqa: E402, F401
