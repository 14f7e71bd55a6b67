"""What the people on call look at: how things stand in the database, as metrics.

``alerts.yml`` (Prometheus) and ``grafana.json`` are in this folder; ``idempotency/README.md`` says
what to do about each alert.
"""
