"""The domain in pure Python: nothing here imports Django, so every rule can be tested alone."""
