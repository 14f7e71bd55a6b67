"""The life of a key, drawn once.

::

                 claim                      complete (same transaction as the work)
       (none) ──────────▶ PROCESSING ─────────────────────────▶ SUCCEEDED   final; replayed
                            │  ▲  │ rolled back / operator
           lease expired:   │  │  └──────────▶ FAILED              nothing happened
           next claim ──────┘  │                 │
           or a recovery job   └─────────────────┘ claim by a request with the same fingerprint
                            │  ▲
                            │  └── an operator freed an operation past its recovery point
                            └── an outside effect may have happened and cannot be repeated safely
                                  ▶ IN_DOUBT     never re-run, never pruned; settled by whoever
                                                 finds out: reconciliation, or an operator

*Release* (a client error was raised before anything was recorded) deletes the row: as if the
request never came.
The check constraint of the table, the admin's filter and the README's table are derived from, or
held to, :class:`State`.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    #: An owner holds the lease, or held it and it ran out.
    PROCESSING = "processing"
    #: There is a final answer, good or bad (a declined card is one); every retry gets it.
    SUCCEEDED = "succeeded"
    #: The work was rolled back. The fingerprint stays: only the same request may run again.
    FAILED = "failed"
    #: An outside effect may have happened and cannot be repeated safely.
    IN_DOUBT = "in_doubt"


#: States in which an answer is final, so that the key can expire.
SETTLED = frozenset({State.SUCCEEDED, State.FAILED})
