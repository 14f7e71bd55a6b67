"""The chaos run: the whole product in real processes, merchants who pay, and a nemesis.

    python -m tests.chaos --seconds 1800 --seed 1

``stage.py`` starts the product, ``intents.py`` and ``merchants.py`` are its traffic, ``nemesis.py``
breaks it, ``history.py`` keeps every request and answer, ``facts.py`` reads what the ledgers and
the key table say afterwards, and ``checker.py`` compares all of that.
"""
