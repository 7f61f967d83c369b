"""Whether a metric is better when it is smaller or larger: as it was said, or as its name suggests."""

import re
from typing import Any, Literal

from hookline.core.errors import OptionError

_LARGER = re.compile(
    r"(^|[/_.-])(acc|accuracy|auc|auroc|bleu|correct|dice|exact_match|f1|iou|map|ndcg|pass|precision|psnr|r2|recall"
    r"|return|reward|rewards|rouge|score|ssim|success|success_rate|win_rate)([/_.@-]|\d|$)",
    re.IGNORECASE,
)
_SMALLER = re.compile(r"(^|[/_.-])(loss|error|perplexity|ppl|nll|mse|mae|rmse|wer|cer|kl)([/_.-]|$)", re.IGNORECASE)


def direction(monitor: str | None, mode: Any) -> Literal["min", "max"]:
    """Which of "min" and "max" it is.

    >>> direction("val/accuracy", None), direction("val/loss", None), direction("val/accuracy", "min")
    ('max', 'min', 'min')
    """
    if mode is not None:
        if mode not in ("min", "max"):
            raise OptionError(f"mode={mode!r}: give 'min' or 'max'.")
        return "min" if mode == "min" else "max"
    is_larger = monitor is not None and _LARGER.search(monitor) is not None and _SMALLER.search(monitor) is None
    return "max" if is_larger else "min"
