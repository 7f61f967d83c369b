"""`RewardError`: a reward function gave something that no reward can be."""

from hookline.core.errors import HooklineError


class RewardError(HooklineError, ValueError):
    """A reward function returned something else than a number or None for each completion."""
