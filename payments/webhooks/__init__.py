"""Webhooks, out and in.

``endpoints`` where merchants want to be told, ``addresses`` where that may be; ``events`` what they
are told, ``delivery`` how it gets there. ``gateway_events`` what the gateway tells us.
``signatures`` for both ways, by the Standard Webhooks scheme.
"""
