"""Runs with media of every kind for the pictures of the page: a segmentation of drawn shapes, the same each time."""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

import hookline as hl

STEPS = 60
SIZE = 240
LABELS = {0: "background", 1: "circle", 2: "square", 3: "triangle"}
COLOURS = {1: (228, 105, 44), 2: (62, 99, 221), 3: (47, 158, 110)}
REPORT = """# Evaluation after {step} steps

Mean IoU is **{score:.3f}**, {change}.

| class | IoU | pixels |
|---|---:|---:|
| circle | {circle:.3f} | 10,412 |
| square | {square:.3f} | 9,880 |
| triangle | {triangle:.3f} | 6,207 |

- Small shapes are *still* missed where they overlap.
- Details: `eval/segmentation.py`, see [the paper](https://arxiv.org/abs/1505.04597).

```python
score = intersection / union
```
"""
PAGE = """<!doctype html><meta charset="utf-8"><style>
body {{ font: 15px system-ui, sans-serif; margin: 16px; color: #222; background: #fff }}
.bar {{ height: 22px; margin: 6px 0; border-radius: 4px }}
.bar {{ background: linear-gradient(90deg, #3e63dd {share}%, #e8edfd 0) }}
</style><h2>Attention to each word</h2>
<p>the</p><div class="bar"></div><p>small circle</p><div class="bar" style="opacity: .6"></div>"""


def make(root: Path) -> None:
    """Record two runs with media of every kind."""
    for name, skill, seed in (("unet-small", 0.72, 1), ("unet-wide", 0.9, 2)):
        with hl.run(name, project="segmentation", root=root, summary=False, tags=["media"]) as run:
            train(run, skill, seed)


def train(run: Any, skill: float, seed: int, until: int | None = None) -> None:
    """Log what a segmentation logs: pictures, histograms, tables, plots."""
    drawn = np.random.default_rng(seed)
    answers = hl.Table(["image", "shape", "score", "correct", "comment"])
    run.log(predictions=answers)
    for step in run.steps(STEPS):
        progress = 1 - math.exp(-(step + 1) / 20)
        score = skill * progress + drawn.normal(0, 0.005)
        run.log(loss=1.2 * (1 - progress) + 0.1, iou=score)
        run.log({"weights/encoder": hl.Histogram(drawn.normal(progress, 1.4 - progress, 4000))})
        run.log({"gradients/decoder": hl.Histogram(drawn.laplace(0, 0.02 + 0.2 * (1 - progress), 4000))})
        if step % 5 == 4:
            evaluate(run, step + 1, score, drawn, answers)
        if step == until:
            return


def evaluate(run: Any, step: int, score: float, drawn: Any, answers: Any) -> None:
    """Log what an evaluation logs."""
    scenes = [scene(np.random.default_rng(number)) for number in range(3)]
    images = []
    for number, (picture, mask, boxes) in enumerate(scenes):
        predicted, found = guess(mask, boxes, score, np.random.default_rng(step * 7 + number))
        caption = f"scene {number}: IoU {score + 0.02 * number - 0.02:.2f}"
        masks = {"prediction": predicted, "truth": mask}
        images.append(hl.Image(picture, caption=caption, boxes=found, masks=masks, labels=LABELS))
    run.log({"validation/scenes": images})
    names = list(LABELS.values())
    targets = drawn.integers(0, 4, 400)
    wrong = drawn.random(400) > 0.4 + score / 2
    predictions = np.where(wrong, drawn.integers(0, 4, 400), targets)
    scores = np.eye(4)[targets] * score + drawn.random((400, 4))
    run.log(
        {
            "validation/confusion": hl.plots.confusion_matrix(targets, predictions, labels=names),
            "validation/roc": hl.plots.roc(targets, scores, labels=names),
            "validation/precision": hl.plots.pr_curve(targets, scores, labels=names),
            "features": hl.Image(feature_maps(drawn, score), columns=8, caption="16 feature maps"),
            "report": hl.Markdown(report(step, score)),
            "attention": hl.Html(PAGE.format(share=round(100 * score))),
            "curve": hl.Figure(figure(step, score)),
            "losses": hl.Figure(plotly(step, score)),
            "prompt": hl.Text("Segment the scene.\nNames of classes: circle, square, triangle.\n"),
            "tone": hl.Audio(tone(220 + 440 * score), rate=8000, caption="the loss as a tone"),
            "turning": hl.Video(frames(step), fps=10, caption="one scene, turning"),
            "weights": hl.File(weights_file(step), caption="the weights of the last layer"),
        }
    )
    for number in range(24):
        truth, value = names[1 + number % 3], float(np.clip(drawn.normal(score, 0.12), 0, 1))
        thumbnail = scene(np.random.default_rng(number % 8), size=48)[0]
        comment = "" if value > 0.6 else "overlaps with another shape and is cut off at the edge of the picture"
        answers.append([hl.Image(thumbnail), truth, value, value > 0.5, comment])


def scene(drawn: Any, size: int = SIZE) -> tuple[Any, Any, list[dict[str, Any]]]:
    """A picture of shapes, its mask of classes, and the boxes around the shapes."""
    picture = Image.new("RGB", (size, size), (236, 239, 243))
    mask = Image.new("L", (size, size), 0)
    boxes: list[dict[str, Any]] = []
    for _ in range(5):
        number = int(drawn.integers(1, 4))
        width = int(drawn.integers(size // 6, size // 3))
        left, top = (int(value) for value in drawn.integers(0, size - width, 2))
        box = (left, top, left + width, top + width)
        for canvas, colour in ((picture, COLOURS[number]), (mask, number)):
            draw = ImageDraw.Draw(canvas)
            if number == 1:
                draw.ellipse(box, fill=colour)
            elif number == 2:
                draw.rectangle(box, fill=colour)
            else:
                draw.polygon([(left + width // 2, top), (left, top + width), (left + width, top + width)], fill=colour)
        boxes.append({"box": box, "label": LABELS[number]})
    noise = drawn.normal(0, 6, (size, size, 3))
    return np.clip(np.asarray(picture) + noise, 0, 255).astype(np.uint8), np.asarray(mask), boxes


def guess(mask: Any, boxes: list[dict[str, Any]], score: float, drawn: Any) -> tuple[Any, list[dict[str, Any]]]:
    """What a model of some skill predicts for a scene."""
    shift = round(12 * (1 - score))
    predicted = np.roll(mask, shift, axis=1) * (drawn.random(mask.shape) < 0.5 + score / 2)
    found = []
    for box in boxes:
        moved = [corner + float(drawn.normal(0, 6 * (1 - score))) for corner in box["box"]]
        found.append({"box": moved, "label": box["label"], "score": round(float(np.clip(score, 0, 0.99)), 2)})
    return predicted.astype(np.uint8), found


def feature_maps(drawn: Any, score: float) -> Any:
    """Sixteen waves of different directions, blurred by noise."""
    y, x = np.mgrid[0:32, 0:32] / 32
    angles = np.arange(16) * np.pi / 16
    scales = 6 + 0.75 * np.arange(16)
    directions = zip(np.cos(angles), np.sin(angles), scales, strict=True)
    waves = [np.sin(scale * (x * across + y * down)) for across, down, scale in directions]
    return (np.stack(waves) * score + drawn.normal(0, 1 - score, (16, 32, 32))).clip(-1, 1)


def report(step: int, score: float) -> str:
    """A text in Markdown."""
    parts = {"circle": score + 0.03, "square": score, "triangle": score - 0.05}
    return REPORT.format(step=step, score=score, change=f"{score / 10:+.3f} since the last one", **parts)


def figure(step: int, score: float) -> Figure:
    """A figure of matplotlib."""
    made = Figure(figsize=(5, 3))
    axes = made.subplots()
    x = np.linspace(0, 6, 200)
    axes.plot(x, np.exp(-x * score), label="model")
    axes.plot(x, np.exp(-x * 0.5), "--", label="baseline")
    axes.set_title(f"calibration after {step} steps")
    axes.legend()
    return made


def plotly(step: int, score: float) -> dict[str, Any]:
    """A figure of Plotly, as a dict."""
    x = list(range(1, step + 1))
    return {
        "data": [
            {"type": "scatter", "mode": "lines+markers", "name": "train", "x": x, "y": [1 / (1 + v / 12) for v in x]},
            {"type": "bar", "name": "classes", "x": x, "y": [score * (v % 5) / 20 for v in x]},
        ],
        "layout": {"title": {"text": "Losses"}, "xaxis": {"title": {"text": "step"}}, "yaxis": {"title": "loss"}},
    }


def tone(pitch: float) -> Any:
    """Half a second of a tone."""
    time = np.arange(4000) / 8000
    return 0.4 * np.sin(2 * np.pi * pitch * time) * np.exp(-3 * time)


def weights_file(step: int) -> Path:
    """A file of a few kB, the same path for each evaluation."""
    path = Path(tempfile.gettempdir()) / "decoder.npy"
    np.save(path, np.random.default_rng(step).normal(size=(64, step)).astype(np.float32))
    return path


def frames(step: int) -> Any:
    """A scene that turns."""
    picture = Image.fromarray(scene(np.random.default_rng(step % 3), size=96)[0])
    return np.stack([np.asarray(picture.rotate(angle)) for angle in range(0, 360, 30)])


if __name__ == "__main__":
    import sys

    make(Path(sys.argv[1]))
