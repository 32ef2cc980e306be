"""The ways nbafl says no. Each carries one sentence for the user and the exit code of the command line."""

from __future__ import annotations


class NbaflError(Exception):
    """Something the user asked for did not happen; the message is one sentence that says why."""

    exit_code = 1


class UsageError(NbaflError):
    """An invalid request: names the field, the value and what is allowed."""

    exit_code = 2

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field} must be {allowed}, got {value!r}.")
        self.field = field


class DataError(NbaflError):
    """The data a user pointed at is missing, damaged or cannot be read as asked."""

    exit_code = 2


class Refused(NbaflError):
    """The request is well formed, but granting it would break a promise (a budget, a premise)."""

    exit_code = 1
