"""What retries do to a server, simulated: the reasons for jitter, for a budget and for hedging.

===============  ===============================================================================
``contention``   many clients update one row at once: how many calls until each has succeeded
``recovery``     a busy server has an outage: does it come back, or do the retries keep it down
``tails``        one answer in twenty is slow: what a second copy of the request saves
===============  ===============================================================================

``python -m idempotency.client.simulation`` or ``manage.py simulate_retries`` runs them. Everything
is drawn from a seed, so that a run can be repeated. Waits come from ``backoff.py`` and budgets from
``budget.py``: what is shown is what the client ships.

The models run on plain Python. The ``simulation`` extra adds pictures (matplotlib), a progress bar
(rich), and speed where there are thousands of clients (numpy).
"""
