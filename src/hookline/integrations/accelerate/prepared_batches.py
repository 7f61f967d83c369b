"""Data loaders that Accelerate has prepared, in the order that they had, so that a resume is exact."""

from typing import Any

from torch import Generator

from hookline.integrations.torch.loader_replay import LoaderReplay
from hookline.loops.batches import Batches


class PreparedReplay(LoaderReplay):
    """Opens the epochs of prepared loaders, and of others."""

    def made_of(self, loader: Any) -> Batches:
        """The batches of a data loader."""
        is_prepared = hasattr(loader, "base_dataloader")
        return PreparedBatches(loader, what="The data loader") if is_prepared else super().made_of(loader)


class PreparedBatches(Batches):
    """The batches that a prepared loader gives this process."""

    @property
    def keeps_its_place(self) -> bool:
        """Whether ``accelerator.load_state()`` has put the loader where it was."""
        return bool(getattr(self.data, "use_stateful_dataloader", False))

    def place(self) -> Any:
        """None: ``accelerator.save_state()`` saves it."""
        return None

    def _generators(self) -> list[Generator]:
        """All that the loader, and the samplers inside of each other, draw from."""
        found: dict[int, Generator] = {}
        waiting, seen = [self.data, getattr(self.data, "base_dataloader", None)], set[int]()
        while waiting:
            holder = waiting.pop()
            if holder is None or id(holder) in seen:
                continue
            seen.add(id(holder))
            held = (getattr(holder, name, None) for name in ("generator", "synchronized_generator"))
            found |= {id(each): each for each in held if isinstance(each, Generator)}
            waiting += [getattr(holder, name, None) for name in ("batch_sampler", "sampler")]
        return list(found.values())
