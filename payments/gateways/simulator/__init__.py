"""A card gateway that misbehaves on demand: the ground truth of every demonstration and test.

    python -m payments.gateways.simulator --port 0 --data gateway.sqlite3

It is a process of its own with a durable ledger of its own, so it outlives every crash of ours:
what its ledger says is what happened to the money. Standard library only.

============================  ===================================================================
``POST /charges``             ``{amount, currency, source, reference?}`` → 201
``POST /refunds``             ``{charge, amount, reference?}`` → 201
``GET /charges``              the charges under a ``key`` or of a ``reference``, declined ones too
``GET /refunds``              the refunds under a ``key`` or of a ``reference``
``GET /ledger``               every movement of money, oldest first; ``since``, ``until`` (ISO
                              8601), ``after`` (an id) and ``limit`` narrow it
``GET/POST /control``         ``{dedupe: bool, down: bool, delay: seconds}``; lost at a restart
``GET /healthz``              200
============================  ===================================================================

Dedupe. A POST with an ``Idempotency-Key`` runs once. A second one gets the first answer, marked
``Idempotent-Replayed: true``, also when both run at the same time. A key is bound to the
parameters it was first seen with, for charges and refunds alike; others are refused with 422
``idempotency_key_reused``. A request refused with 400 or 422 leaves no trace. With dedupe switched
off every POST moves money anew.

Events. With ``--events-url`` each new charge, declined ones too, and each new refund is told to
that webhook, signed by the Standard Webhooks scheme with the first secret in
``GATEWAY_WEBHOOK_SECRETS``, and sent again for two minutes until it answers 2xx.

Errors are ``{"error": {code, message, processed?}}``. ``processed: false`` states that no money
moved for this request; where it is absent the gateway does not say, and only asking again with
the same key tells.
"""
