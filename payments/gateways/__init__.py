"""Where the money really moves: the port, its adapters, and a simulated gateway.

``base`` is the port that the rest of ``payments`` sees, ``choice`` the adapter that the settings
name. ``calling`` is what adapters over HTTP share, ``http`` the one that speaks as the simulated
gateway does, ``stripe`` the one to Stripe. ``simulator`` is a gateway that misbehaves on demand, in
a process of its own. This module imports nothing, so that the simulator starts without Django.
"""
