"""Where the money really moves: the port, its HTTP adapter, and a simulated gateway.

``base`` is the port that the rest of ``payments`` sees, ``choice`` the adapter that the settings
name, ``http`` the one to a gateway over HTTP, ``simulator`` a gateway that misbehaves on demand, in
a process of its own. This module imports nothing, so that the simulator starts without Django.
"""
