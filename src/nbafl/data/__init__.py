"""Whose data it is: MNIST, CSV files, partitions, fixed features, and the Federation they end up in."""

from nbafl.data.federation import Federation

__all__ = ["Federation"]
