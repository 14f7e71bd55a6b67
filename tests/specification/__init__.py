"""The protocol of one key, small enough to look at all of it.

::

    python -m tests.specification           every interleaving, then guards that are missing
    python -m tests.specification --small   the bounds of the unit test

`world.py` says what there is, `rules.py` what must hold, `protocol.py` what may happen next,
`search.py` looks at every interleaving, `mutations.py` takes guards away. Nothing here imports the
product. A step is one conditional write, one effect at the gateway, or one commit, and each is in
the code:

===================  ===========================================================================
step                 in the code
===================  ===========================================================================
client looks         ``idempotency_claim_v1``: its SELECT; ``DatabaseStore.claim``: ``_look``
client claims        the same function's INSERT … ON CONFLICT, or one of its two guarded UPDATEs;
                     ``_insert``, ``_start_new_generation``, ``_run_again``
works                ``Engine._work``: the handler, in a transaction
writes the end       ``idempotency_complete_v1``: UPDATE … WHERE id AND owner AND processing;
                     ``DatabaseStore.complete``. The row is locked from here to the commit
commits              COMMIT of ``Engine._work``, ``operations._finalize`` and ``_withdraw``,
                     ``settling.settle``
fails, releases      ``Engine._end``: ``Store.fail``, ``Store.release``
renews               ``Execution.renew``
prepares             ``_Attempt._prepare``: ``Store.record_recovery_point``, and its commit
calls                ``operations._drive``: ``Kept.call`` under ``kept.downstream_key``
looks the call up    ``operations._drive``: ``Kept.look_up``, where a call is not repeatable
suspends, doubts     ``operations._suspend``, ``_doubt``
withdraws            ``operations._withdraw``: only for the attempt that prepared
job looks            ``Store.reclaim``, ``abandoned_operations``, ``take_over``: their SELECT
job reclaims         ``DatabaseStore._reclaim_one``
job takes over       ``DatabaseStore.take_over``: ``_run_again``
job gives up         ``maintenance._give_up``
operator frees, ends ``operators.force_fail``, under ``stands_as``
operator settles     ``settling.settle``: ``take_over_seen``, then one transaction. That nothing
                     was sent may be said only once no call can be on its way: ``enquiry.weigh``
prunes               ``DatabaseStore.prune_expired``
===================  ===========================================================================

A crash may come between any two steps, and a process may pause for as long as it likes, so leases
run out under it. Not in here: several keys, the days of responses, and clocks; a lease runs, or it
is over.
"""
