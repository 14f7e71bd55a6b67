"""The runnable reference project. Nothing imports it but its own entry points and the tests."""
