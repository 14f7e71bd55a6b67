"""What becomes of messages, as signals. Sent with ``send_robust``, like those of keys.

Each carries ``message`` (a ``Message``):

- ``message_claimed``: the claim is committed and nothing is sent yet.
- ``message_sent``: the channel said how the send ended, and nothing of it is saved; ``ending``,
  ``seconds``. Sent in the thread that delivers.
- ``message_settled``: the mark is committed; ``ending`` as it was written (a ``Retry`` after the
  last attempt is a ``Dead``), ``seconds``.
"""

from __future__ import annotations

from idempotency.signals import Transition

message_claimed = Transition()
message_sent = Transition()
message_settled = Transition()
