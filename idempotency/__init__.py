"""Safe retries for Django: one key, one effect, and every retry gets the first answer."""

__version__ = "0.1.0"
