"""The gateway's books beside ours: every difference is a row that an operator works through.

``comparison`` finds what differs, ``job`` reads both sides and keeps the rows, ``models`` has them.
"""
