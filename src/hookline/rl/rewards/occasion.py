"""When something that happens again and again is worth saying."""


def is_occasion(count: int) -> bool:
    """Whether to say it this time: the first three times, then each time that the count has a digit more."""
    return count <= 3 or str(count).rstrip("0") == "1"
