"""`JaxRun`: `hl.run` for a loop in JAX.

The training state is a pytree that the loop assigns in each step, as ``loop.train_state``.
Checkpoints hold it, the random key, and the random states of Python and NumPy that the order of the data comes from, so
that a resume goes on as if there had been no interruption. Nothing in them is code.

It is for one process. Of several (`jax.distributed`) each has a part of the state only, which is not saved here.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, Unpack

import jax

from hookline.core.errors import OptionError
from hookline.integrations.jax import pytree_file
from hookline.integrations.replay import Replay
from hookline.loops.options import LoopOptions
from hookline.loops.run import Run

B = TypeVar("B")
STATE = "train_state"
KEY = "key"


class JaxRun(Run):
    """Drives a loop of your own over a training state.

    Args:
        train_state: The pytree that training changes: parameters, the optimizer's state, counters. A resume wants one
            of the same structure, which it fills with what was saved.
        name: What the run is called.
        model: Picks out of the state what callbacks find as ``loop.model``; all of it by default.
        key: A random key that `next_key` splits.
        options: As for `hl.run`; what ``save`` writes and ``load`` reads comes in addition.
    """

    restores_itself = True
    no_gradients = "in JAX an update is a function of the state, and shows no gradients"

    def __init__(
        self,
        train_state: Any,
        name: str | None = None,
        *,
        model: Callable[[Any], Any] | None = None,
        key: Any = None,
        **options: Unpack[LoopOptions],
    ) -> None:
        if model is not None and not callable(model):
            raise OptionError(f"model={model!r}: give a function of the state, such as lambda state: state['params'].")
        if jax.process_count() > 1:
            raise OptionError(
                f"{jax.process_count()} processes of JAX train together, and none has the whole state to save. "
                "Use hl.run() on process 0, hl.run(root=None) on the others, and a checkpointer of your own."
            )
        super().__init__(name, **options)
        self.train_state, self.key = train_state, key
        self._pick = model
        self._replay = Replay()

    @property
    def model(self) -> Any:
        """What ``model`` picks out of the state."""
        return self.train_state if self._pick is None else self._pick(self.train_state)

    @model.setter
    def model(self, model: Any) -> None:
        if model is not None:  # which every loop begins with
            raise OptionError("loop.model is a part of loop.train_state: assign that, and say which part with model=.")

    def next_key(self) -> Any:
        """A new random key; what it was split off is kept, and part of every checkpoint."""
        if self.key is None:
            raise OptionError(
                "next_key(): there is no key to split. Give one: run(train_state, key=jax.random.key(0))."
            )
        self.key, new = jax.random.split(self.key)
        return new

    def _fetch(self, batches: Iterable[B], total: int | None) -> Iterator[tuple[int, B]]:
        return super()._fetch(self._replay.epoch(batches, self.epoch, self._to_skip), total)

    def _save_files(self, directory: Path) -> None:
        pytree_file.write(self.train_state, directory / STATE)
        pytree_file.write(self.key, directory / KEY)
        super()._save_files(directory)

    def _load_files(self, directory: Path) -> None:
        train_state = pytree_file.read(self.train_state, directory / STATE)
        key = pytree_file.read(self.key, directory / KEY)
        super()._load_files(directory)
        self.train_state, self.key = train_state, key

    def _state(self, step: int) -> dict[str, Any]:
        state = super()._state(step)
        nothing_done = self._epoch_state == "open" and state["batches_done"] == 0
        return state | {"has_files": True, "replay": self._replay.state(nothing_done=nothing_done)}

    def _place_at(self, state: dict[str, Any]) -> None:
        super()._place_at(state)
        if "replay" in state:
            self._replay.load_state(state["replay"])


run = JaxRun
