"""What images and histograms of tensors on a GPU cost the training thread, and whether anything waits for the device.

A loop whose kernels keep the device busy logs an image of 256 x 256, a batch of images and a histogram of a million
values at each step, all of them on the device, under ``torch.cuda.set_sync_debug_mode("error")``, in which torch raises
at every operation that waits for the device. Each tensor is overwritten right after `log`. Afterwards the record is
read back and compared with the values that were logged.
"""

import argparse
import io
import json
import tempfile
import time
from statistics import median
from typing import Any

import torch

import hookline as hl

STEPS = 100
BAR = 100.0
"""At most so many microseconds of the training thread for an image."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args().json
    generator = torch.Generator(device="cuda").manual_seed(1)
    image = torch.zeros(3, 256, 256, device="cuda")
    batch = torch.zeros(16, 3, 32, 32, device="cuda")
    values = torch.zeros(1_000_000, device="cuda")
    work = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    cases: dict[str, Any] = {
        "image": lambda: hl.Image(image),
        "batch of images": lambda: hl.Image(batch),
        "histogram of 1e6": lambda: hl.Histogram(values, bins=32),
    }
    times: dict[str, list[float]] = {name: [] for name in [*cases, "end of the step"]}
    ended_step = 0
    expected: list[tuple[float, float, int]] = []
    with tempfile.TemporaryDirectory() as root, hl.run("gpu", root=root, project="p", summary=False) as run:
        for index in run.steps(range(STEPS)):
            torch.cuda.set_sync_debug_mode("default")
            if ended_step:
                times["end of the step"].append((time.perf_counter_ns() - ended_step) / 1000)
            image.uniform_(0, 1, generator=generator)
            image[0, 0, 0] = index / STEPS
            batch.uniform_(0, 1, generator=generator)
            values.normal_(index, 1.0, generator=generator)
            expected.append((index / STEPS, float(values.double().mean()), int((image[1] * 255).round().sum())))
            for _ in range(8):
                work @ work  # the device is busy: waiting for it takes milliseconds
            # Until the next step begins: media are handed to their writer at the end of the step.
            torch.cuda.set_sync_debug_mode("error")
            for name, make in cases.items():
                began = time.perf_counter_ns()
                run.log(name.replace(" ", "_"), make())
                times[name].append((time.perf_counter_ns() - began) / 1000)
            image.zero_()
            values.zero_()
            ended_step = time.perf_counter_ns()
        torch.cuda.set_sync_debug_mode("default")
        ended = time.perf_counter()
        run.recorder.flush()  # type: ignore[union-attr]
        waited = time.perf_counter() - ended
        wrong = _count_wrong(run.output_dir, expected)
    found = {name: round(median(each[5:]), 1) for name, each in times.items()}
    if as_json:
        print(json.dumps({"microseconds": found, "wrong": wrong, "steps": STEPS, "bar": BAR}))
        return
    for name, microseconds in found.items():
        print(f"{name:20} {microseconds:8.1f} us of the training thread")
    print(f"image: bar {BAR:.0f} us {'met' if found['image'] <= BAR else 'NOT MET'}; synchronizations: 0")
    print(
        f"records that differ from what was logged: {wrong} of {2 * STEPS}; encoded {waited:.1f} s after the last step"
    )


def _count_wrong(directory: Any, expected: list[tuple[float, float, int]]) -> int:
    import numpy as np
    import PIL.Image

    from hookline._record.blobs import read_blob
    from hookline._record.records import Media

    wrong = seen = 0
    for record in hl.read(directory):
        if not isinstance(record, Media):
            continue
        corner, mean, green = expected[record.step - 1]
        if record.name == "image":
            seen += 1
            pixels = np.asarray(PIL.Image.open(io.BytesIO(read_blob(directory, record.blob)))).astype(int)
            wrong += pixels[0, 0, 0] != round(corner * 255) or int(pixels[..., 1].sum()) != green
        elif record.name == "histogram_of_1e6":
            seen += 1
            wrong += abs(record.data["mean"] - mean) > 1e-3 or record.data["count"] != 1_000_000
    return wrong + 2 * STEPS - seen


if __name__ == "__main__":
    main()
