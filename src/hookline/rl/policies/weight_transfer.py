"""Transfers weights to inference servers: as a checkpoint, as an adapter, or by broadcast in a process group.

A `WeightUpdate` is one version of the weights, which any server can get at any time: a server that was away when the
others got it, or has been restarted, gets it before it serves again.

- Checkpoints and adapters are written to a directory that the servers read as well, under a name of their own for each
  version, and are complete before they have that name. The latest two are kept.
- Each server has a process group of its own for broadcasts, in which this process is rank 0: a server that dies during
  a broadcast does not hold up the others. The tensors are sent as they are, so they must not change before the next
  version is loaded.
"""

import importlib
import shutil
import socket
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol
from urllib.parse import urlsplit

from hookline._engine.errors import OptionError
from hookline.rl.policies.base import PolicyError
from hookline.rl.policies.server_api import Call, InFlight, ServerAPI, TensorInfo

if TYPE_CHECKING:
    import torch

WeightsWay = Literal["checkpoint", "adapter", "broadcast"]
Send = Callable[[Call], bytes]
"""Sends a call that may take long to a server, and returns its answer."""

KEPT_VERSIONS = 2


class WeightUpdate(Protocol):
    """One version of the weights."""

    version: int

    @property
    def adapter(self) -> str | None:
        """The name that requests give to use it; None if it replaces the weights of the model."""

    def apply(self, url: str, send: Send) -> None:
        """Let a server use it from now on."""


class CheckpointUpdate:
    """Weights in a directory, from which servers load them."""

    adapter = None

    def __init__(self, api: ServerAPI, version: int, path: Path) -> None:
        self._api, self.version, self._path = api, version, path

    def apply(self, url: str, send: Send) -> None:
        """Let a server load the directory."""
        for call in self._api.load_checkpoint(str(self._path), str(self.version)):
            send(call)


class AdapterUpdate:
    """An adapter in a directory, which servers load beside those that requests in flight use."""

    def __init__(self, api: ServerAPI, version: int, path: Path) -> None:
        self._api, self.version, self._path = api, version, path
        self.adapter: str = path.name

    def apply(self, url: str, send: Send) -> None:
        """Let a server load the adapter."""
        send(self._api.load_adapter(self.adapter, str(self._path)))


class BroadcastUpdate:
    """Weights that are sent to the processes of a server in a process group."""

    adapter = None

    def __init__(
        self, broadcasts: "Broadcasts", api: ServerAPI, version: int, weights: "Mapping[str, torch.Tensor]"
    ) -> None:
        self._broadcasts, self._api, self.version, self._weights = broadcasts, api, version, weights

    def apply(self, url: str, send: Send) -> None:
        """Send the tensors while the server receives them."""
        self._broadcasts.send(self._api, url, send, self._weights, str(self.version))


class Publisher(Protocol):
    """Makes an update of each version of the weights."""

    def publish(self, version: int, weights: "Mapping[str, torch.Tensor]") -> WeightUpdate:
        """Return an update with these weights."""

    def close(self) -> None:
        """Release what updates use."""


class DirectoryPublisher:
    """Writes each version to a new directory.

    Args:
        directory: Where the versions are written; servers must see it under the same path.
        source: The model that is trained, or the directory of a checkpoint or an adapter: where the files beside the
            weights come from.
        tokenizer: Saved with checkpoints.
        is_adapter: Write adapters.
    """

    def __init__(self, api: ServerAPI, directory: str | Path, source: Any, tokenizer: Any, *, is_adapter: bool) -> None:
        self._api, self._directory = api, Path(directory).absolute()
        self._source, self._tokenizer, self._is_adapter = source, tokenizer, is_adapter
        # Servers keep adapters by name, so those of another run must have other names.
        self._name = f"hookline-{uuid.uuid4().hex[:8]}" if is_adapter else "weights"
        self._written: list[Path] = []

    def publish(self, version: int, weights: "Mapping[str, torch.Tensor]") -> WeightUpdate:
        """Write a version, and remove those that no server needs any longer."""
        from safetensors.torch import save_file

        place = self._directory / f"{self._name}-{version}"
        partial = self._directory / f".{place.name}.partial"
        for leftover in (partial, place):
            shutil.rmtree(leftover, ignore_errors=True)
        partial.mkdir(parents=True)
        # Each tensor on its own: weights that are tied share memory, which the format does not allow.
        tensors = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in weights.items()}
        name = "adapter_model.safetensors" if self._is_adapter else "model.safetensors"
        save_file(tensors, partial / name, metadata={"format": "pt"})
        self._write_settings(partial)
        partial.rename(place)
        self._written = [path for path in self._written if path != place] + [place]
        while len(self._written) > KEPT_VERSIONS:
            shutil.rmtree(self._written.pop(0), ignore_errors=True)
        return (AdapterUpdate if self._is_adapter else CheckpointUpdate)(self._api, version, place)

    def close(self) -> None:
        """Leave the latest versions where they are: servers may read them again when they restart."""

    def _write_settings(self, place: Path) -> None:
        if isinstance(self._source, str | Path):
            for file in Path(self._source).iterdir():
                if (
                    file.is_file()
                    and file.suffix in (".json", ".txt", ".model", ".jinja")
                    and ".index." not in file.name
                ):
                    shutil.copy(file, place)
        elif self._is_adapter:
            self._source.peft_config[self._source.active_adapter].save_pretrained(place)
        else:
            base = self._source.get_base_model() if hasattr(self._source, "peft_config") else self._source
            base.config.save_pretrained(place)
            if getattr(base, "generation_config", None) is not None:
                base.generation_config.save_pretrained(place)
            self._tokenizer.save_pretrained(place)


class Broadcasts:
    """The process groups with the servers.

    Args:
        backend: "nccl" on GPUs, or "gloo".
        address: Under which servers reach this machine; by default that from which they are reached.
        timeout_seconds: How long joining and each tensor may take.
        in_flight: What happens to requests in flight during an update.
    """

    def __init__(
        self, api: ServerAPI, *, backend: str, address: str | None, timeout_seconds: float, in_flight: InFlight
    ) -> None:
        self._api, self._backend, self._address = api, backend, address
        self._timeout, self._in_flight = timeout_seconds, in_flight
        self._lock = threading.Lock()
        self._groups: dict[str, BroadcastGroup] = {}

    def publish(self, version: int, weights: "Mapping[str, torch.Tensor]") -> WeightUpdate:
        """Return an update that sends these tensors, which must not change before the next one."""
        return BroadcastUpdate(self, self._api, version, weights)

    def send(self, api: ServerAPI, url: str, send: Send, weights: "Mapping[str, torch.Tensor]", version: str) -> None:
        """Send tensors to a server."""
        group = self._groups.get(url)
        if group is None:
            group = self._joined(url, send)
        tensors = [tensor.detach() for tensor in weights.values()]
        info = TensorInfo(
            list(weights),
            [str(each.dtype).removeprefix("torch.") for each in tensors],
            [[*each.shape] for each in tensors],
        )
        transfer = api.transfer(info, version, group.name, self._in_flight)
        try:
            for call in transfer.before:
                send(call)
            _together(lambda: send(transfer.receive), lambda: group.send(tensors))
            for call in transfer.after:
                send(call)
        except BaseException:
            self._drop(url)  # after a failure its processes may wait for another tensor: the next update joins again
            raise

    def close(self) -> None:
        """Leave all groups."""
        for url in list(self._groups):
            self._drop(url)

    def _joined(self, url: str, send: Send) -> "BroadcastGroup":
        world_size = 1 + self._api.read_world_size(send(self._api.parallelism))
        address = self._address or _own_address(url)
        group = BroadcastGroup(address, world_size, backend=self._backend, timeout_seconds=self._timeout, api=self._api)
        try:
            join = self._api.join(address, group.port, world_size, group.name, self._backend)
            _together(lambda: send(join), group.join)
        except BaseException:
            group.close()
            raise
        with self._lock:
            self._groups[url] = group
        return group

    def _drop(self, url: str) -> None:
        with self._lock:
            group = self._groups.pop(url, None)
        if group is not None:
            group.close()


class BroadcastGroup:
    """A process group of this process, rank 0, and those of a server; other process groups are not affected.

    SGLang makes its part with `torch.distributed`, and so does this. vLLM's part is a communicator of its own, which
    needs vLLM in this environment too. Rendezvous listens only on the given address.
    """

    def __init__(self, address: str, world_size: int, *, backend: str, timeout_seconds: float, api: ServerAPI) -> None:
        self._address, self._world_size, self._backend = address, world_size, backend
        self._timeout = timedelta(seconds=timeout_seconds)
        self._is_vllm = api.title == "vLLM" and backend == "nccl"
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        # vLLM's request to join has no place for a name, but both sides know the port.
        self.name = f"hookline-{self.port}" + ("" if api.title == "vLLM" else f"-{uuid.uuid4().hex[:8]}")
        self._group: Any = None

    def join(self) -> None:
        """Wait until all processes have joined.

        Raises:
            PolicyError: They have not within the time limit.
        """
        if self._is_vllm:
            self._listener.close()  # the communicator listens on the port itself
            self._group = _vllm_communicator(self._address, self.port, self._world_size)
            return
        from torch.distributed import PrefixStore, TCPStore
        from torch.distributed.distributed_c10d import Backend, _new_process_group_helper, _world

        try:
            store = TCPStore(
                self._address,
                self.port,
                None,
                is_master=True,
                timeout=self._timeout,
                wait_for_workers=False,
                master_listen_fd=self._listener.detach(),
            )
            # As SGLang does it: `new_group` would need a default group that spans the trainer and the servers.
            self._group, _ = _new_process_group_helper(
                self._world_size,
                0,
                [],
                Backend(self._backend),
                PrefixStore(self.name, store),
                group_name=self.name,
                timeout=self._timeout,
            )
            _world.pg_group_ranks[self._group] = {rank: rank for rank in range(self._world_size)}
        except RuntimeError as error:
            raise PolicyError(f"The server did not join the process group of a broadcast: {error}") from error

    def send(self, tensors: "Sequence[torch.Tensor]") -> None:
        """Send tensors, in their order.

        Raises:
            PolicyError: The server died, or does not receive them within the time limit.
        """
        if self._is_vllm:
            import torch

            for tensor in tensors:
                self._group.broadcast(tensor.contiguous(), src=0, stream=torch.cuda.current_stream())
            torch.cuda.synchronize()
            return
        from torch.distributed import broadcast

        try:
            for tensor in tensors:
                sent = tensor if self._backend == "nccl" else tensor.cpu()
                broadcast(sent.contiguous(), src=0, group=self._group)
        except RuntimeError as error:
            raise PolicyError(f"The server did not receive the weights: {error}") from error

    def close(self) -> None:
        """Leave the group."""
        self._listener.close()
        group, self._group = self._group, None
        if group is not None and not self._is_vllm:
            from torch.distributed import destroy_process_group

            destroy_process_group(group)


def _vllm_communicator(address: str, port: int, world_size: int) -> Any:
    try:
        engine = importlib.import_module("vllm.distributed.weight_transfer.nccl_engine")
    except ImportError as error:
        raise OptionError(
            "weights='broadcast' to vLLM over NCCL requires vLLM in the learner's environment, whose communicator it "
            "uses: pip install vllm, or give weights='checkpoint'."
        ) from error
    info = {"master_address": address, "master_port": port, "world_size": world_size}
    return engine.NCCLWeightTransferEngine.trainer_init(info)


def _together(remote: Callable[[], Any], own: Callable[[], Any]) -> None:
    """Run a call to a server and this process's part of it at the same time.

    The first failure is raised without waiting for the other part, which ends at its own time limit: of two processes
    that wait for each other, one has failed.
    """
    done = threading.Event()
    pool = ThreadPoolExecutor(2, thread_name_prefix="hookline-broadcast")
    try:
        futures = [pool.submit(each) for each in (remote, own)]
        for future in futures:
            future.add_done_callback(
                lambda each: done.set() if each.exception() or all(f.done() for f in futures) else None
            )
        done.wait()
        for future in futures:
            if future.done():
                future.result()
    finally:
        pool.shutdown(wait=False)


def _own_address(url: str) -> str:
    """Return the address of this machine on the way to a server."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)), 10) as one:
        return str(one.getsockname()[0])
