"""Rows of persons: put side by side, and counted."""

from __future__ import annotations

import numpy as np

from nbafl.errors import DataError


def by_person(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The order that puts each person's rows side by side (rows of a person keep theirs), and each person's rows."""
    codes = np.asarray(codes)
    if codes.ndim != 1 or not len(codes):
        raise DataError(f"Persons must be one value per row, got shape {codes.shape}.")
    _, numbered, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return np.argsort(numbered, kind="stable"), counts
