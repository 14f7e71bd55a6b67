"""The retry lab at /lab/: a page on which a person breaks payments, and watches what is kept.

It belongs to the runnable project, as `make demo` does: it knows the demo's merchants, the faults
of `config.faults` and the simulated gateway, none of which `payments` may know. It gives the
demo's API key to whoever looks, so outside the demo it cannot even be imported.
"""

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

if not settings.DEMO:
    raise ImproperlyConfigured("config.lab gives the demo's API key to anybody: it needs DEMO=1.")
