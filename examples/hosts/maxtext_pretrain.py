"""Pre-training with MaxText; the lines for hookline are marked with "hookline".

The arguments are those of MaxText's own command: ``maxtext_pretrain.py base.yml steps=50 ...``.
"""

import sys

from maxtext.trainers.pre_train import train
from one_callback import GoodEnough  # hookline

from hookline.integrations.maxtext import observe  # hookline


def main() -> None:
    """Train until it is good enough."""
    config, recorder = train.initialize(sys.argv)
    with observe([GoodEnough(loss=0.5)], name="pretrain"):  # hookline
        train.run(config, recorder)


if __name__ == "__main__":
    main()
