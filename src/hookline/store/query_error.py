"""What queries fail with: no error of the database itself reaches a user."""

from hookline.core.errors import HooklineError


class QueryError(HooklineError, ValueError):
    """A query that is not accepted, or that fails; the message says where."""


class QueryTimeoutError(HooklineError, TimeoutError):
    """A query that took longer than it may."""
