"""What other packages add: rules and adversaries of their own.

A package that offers some names a module in its entry points (group `nbafl.plugins`); importing that module
registers them (`nbafl.rules.register`, `nbafl.privacy.adversary.register`), and every verb knows them.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points

log = logging.getLogger("nbafl")
GROUP = "nbafl.plugins"


@cache
def load() -> None:
    """Import every plugin, once."""
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # somebody else's code; a plan that needs it is refused by name
            log.warning("the plugin %r (%s) cannot be loaded: %s", point.name, point.value, error)
