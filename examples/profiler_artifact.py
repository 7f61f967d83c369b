"""A callback that profiles a few steps and saves the trace as an artifact of the run.

Prints the artifact and what is in its trace. Open the trace in https://ui.perfetto.dev: it is in the artifact's file,
which `hookline artifacts get default/trace` copies out of the record.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import hookline as hl


class ProfilerTrace(hl.Callback):
    """Profiles some steps with `torch.profiler`.

    Args:
        first: The first step to profile, counted from 0; the steps before it warm up.
        steps: How many steps to profile.
    """

    def __init__(self, first: int = 5, steps: int = 3) -> None:
        self.first, self.last = first, first + steps - 1
        self._profiler: Any = None

    def on_step_start(self, loop: hl.LoopState, step_idx: int, /) -> None:
        if step_idx == self.first:
            activities = [ProfilerActivity.CPU]
            activities += [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
            self._profiler = profile(activities=activities)
            self._profiler.start()

    def on_step_end(self, loop: hl.LoopState, step_idx: int, /) -> None:
        if self._profiler is None or step_idx < self.last:
            return
        self._profiler.stop()
        # The files are opened by save_artifact, so the directory may be deleted at once.
        with tempfile.TemporaryDirectory() as directory:
            trace = Path(directory) / "trace.json"
            self._profiler.export_chrome_trace(str(trace))
            metadata = {"first_step": self.first, "last_step": self.last}
            loop.save_artifact("trace", trace, kind="profile", metadata=metadata)
        self._profiler = None


def main() -> None:
    """Train a small model for twenty steps, three of them profiled."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    with hl.run("profiled", callbacks=[ProfilerTrace()], summary=False) as run:
        for _ in run.steps(20):
            loss = model(torch.randn(32, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss)

    trace = hl.artifact("trace")
    events = json.loads(trace.path("trace.json").read_text())["traceEvents"]
    calls = sum(event.get("name") == "aten::linear" for event in events)
    print(f"{trace.id}: {len(trace.files)} file, steps {trace.metadata['first_step']} to {trace.metadata['last_step']}")
    print(f"{calls} calls of a linear layer in the trace")


if __name__ == "__main__":
    main()
