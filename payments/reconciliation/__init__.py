"""The gateway's books beside ours: every difference is a row that an operator works through.

``books`` reads our side, ``comparison`` says what differs, ``differences`` keeps the rows (their
model is in ``models``), ``job`` does one after the other.
"""
