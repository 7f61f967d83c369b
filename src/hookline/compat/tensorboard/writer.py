"""`SummaryWriter`: TensorBoard's writer, recording into a run of hookline.

The methods are those of `torch.utils.tensorboard.SummaryWriter`, and tensorboardX's where they differ. Each call of
`add_scalar` is a row of its own, with the tag, the step and the time that it was given, and is in the journal when it
returns: nothing waits in a queue, so ``flush_secs`` and ``max_queue`` have no effect. Values on a device are not waited
for. Media are copied here, and encoded and written on other threads.

Graphs, embeddings, meshes and custom chart layouts are accepted but not recorded; each is logged once.
"""

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack

from hookline._engine.errors import OptionError
from hookline._engine.metrics import axis_of, collect, plain
from hookline._record.device import defer
from hookline._record.media import Audio, Figure, Histogram, Markdown, Media, Video
from hookline._record.media_encoding import numpy
from hookline.compat.tensorboard.runs import OPEN_RUNS, WriterRun, record_media, record_row
from hookline.compat.tensorboard.values import (
    arranged,
    array_of_numbers,
    bucket_histogram,
    image_of,
    joined_name,
    number_of,
    pr_counts,
    pr_curve,
    range_of,
    settings_in,
)
from hookline.loops.options import RunOptions
from hookline.loops.session import Session

logger = logging.getLogger("hookline")

_MOST_TAGS = 10_000
_named: set[str] = set()
"""Ignored features that have been logged."""


class WriterOptions(RunOptions, total=False):
    """Options that TensorBoard's writer does not have: the run's name and the options of `hookline.run`."""

    name: str
    callbacks: Any


class SummaryWriter:
    """Writes values to a run of hookline, as TensorBoard's class of this name writes them to a directory.

    Writers of one training share a run: those of ``exp/train`` and ``exp/val``, of one directory, and of directories
    below one that has a writer. It begins with the first writer and ends when all of them are closed.

    Args:
        log_dir: Names the run. A directory that does not exist is created, because programs keep other files there. By
            default ``runs/<date>_<host><comment>``.
        comment: The end of the default name.
        purge_step: Continue the latest run of this name, and drop what it recorded from this step on.
        max_queue, flush_secs, filename_suffix: Accepted for TensorBoard's sake; there is no queue and no file.
        write_to_disk: Whether anything is recorded.
        logdir: tensorboardX's name for ``log_dir``.
        comet_config: Accepted for tensorboardX's sake.
        options: ``name``, ``callbacks``, ``project``, ``root``, ``sinks``, ``config``, ``tags`` and the others, as of
            `hookline.run`; those of the first writer of a run count.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        comment: str = "",
        purge_step: int | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        filename_suffix: str = "",
        write_to_disk: bool = True,
        *,
        logdir: str | Path | None = None,
        comet_config: Mapping[str, Any] | None = None,
        **options: Unpack[WriterOptions],
    ) -> None:
        given = log_dir or logdir
        if not given:
            given = f"runs/{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}{comment}"
        self.log_dir = self.logdir = str(given)
        self.purge_step, self.max_queue, self.flush_secs = purge_step, max_queue, flush_secs
        self.filename_suffix = filename_suffix
        self._writes = bool(write_to_disk)
        self._options: dict[str, Any] = dict(options)
        self._run: Session | None = None
        self._is_open = False
        self._folder = ""
        self._places: dict[str, tuple[str, str]] = {}
        self._record: Any = None
        self._defaults: dict[str, Any] = {}
        self._hparams: dict[str, Any] | None = None
        self._lock = threading.RLock()
        self._open()

    @property
    def run(self) -> Session | None:
        """The run; None with ``write_to_disk=False``."""
        return self._run

    def get_logdir(self) -> str:
        """Return the directory that was given, or the default one."""
        return self.log_dir

    def add_scalar(
        self,
        tag: str,
        scalar_value: Any,
        global_step: Any = None,
        walltime: float | None = None,
        new_style: bool = False,
        double_precision: bool = False,
        *,
        display_name: str = "",
        summary_description: str = "",
    ) -> None:
        """Record a number, with all of its digits.

        Args:
            tag: Its name.
            scalar_value: A number, or an array or tensor with one element, on any device.
            global_step: Its step; 0 without one, as in TensorBoard.
            walltime: Its time, in seconds since 1970; now by default.
            new_style, double_precision: Encodings of TensorBoard's files; every number is recorded in full.
            display_name, summary_description: Accepted for tensorboardX's sake.
        """
        place = self._places.get(tag)
        # The usual case, in as few calls as possible: programs call this many times per step.
        if (
            place is not None
            and walltime is None
            and type(global_step) is int
            and ((kind := type(scalar_value)) is float or kind is int)
            and self._is_open
        ):
            self._record({place[0]: scalar_value}, global_step, place[1])
            return
        self._add_numbers(tag, {tag: scalar_value}, global_step, walltime)

    def add_scalars(
        self,
        main_tag: str,
        tag_scalar_dict: Mapping[str, Any],
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record several numbers as one row, each as ``<main_tag>/<its tag>``.

        TensorBoard makes each of them a run, so that they share a chart.
        """
        values = {f"{main_tag}/{tag}": value for tag, value in tag_scalar_dict.items()}
        self._add_numbers(main_tag, values, global_step, walltime)

    def add_text(self, tag: str, text_string: str, global_step: Any = None, walltime: float | None = None) -> None:
        """Record a text, which is shown as Markdown.

        A table of settings that is called ``hyperparameters``, as CleanRL writes it, becomes configuration as well.
        """
        if settings := settings_in(tag, text_string):
            self._configure(settings)
        self._add_media(tag, [Markdown(text_string)], global_step, walltime)

    def add_image(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "CHW",
    ) -> None:
        """Record an image.

        Args:
            img_tensor: Unsigned bytes are used unchanged; of other numbers, 0 is black and 1 is white.
            dataformats: Its dimensions in order: ``"CHW"``, ``"HWC"``, ``"HW"``, ``"NCHW"`` and so on.
        """
        self._add_media(tag, [image_of(img_tensor, dataformats)], global_step, walltime)

    def add_images(
        self,
        tag: str,
        img_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        dataformats: str = "NCHW",
    ) -> None:
        """Record a batch of images as a grid with eight in a row."""
        self._add_media(tag, [image_of(img_tensor, dataformats)], global_step, walltime)

    def add_image_with_boxes(
        self,
        tag: str,
        img_tensor: Any,
        box_tensor: Any,
        global_step: Any = None,
        walltime: float | None = None,
        rescale: float = 1,
        dataformats: str = "CHW",
        labels: Sequence[str] | str | None = None,
    ) -> None:
        """Record an image with boxes, each as left, top, right and bottom in pixels of the image.

        Args:
            rescale: Accepted; the image keeps its size.
            labels: One for each box; none are shown if their number differs, as in TensorBoard.
        """
        corners = plain(box_tensor.tolist() if callable(getattr(box_tensor, "tolist", None)) else list(box_tensor))
        names = [labels] if isinstance(labels, str) else list(labels or ())
        boxes = [{"box": box} for box in corners]
        if len(names) == len(boxes):
            boxes = [{**box, "label": str(name)} for box, name in zip(boxes, names, strict=True)]
        self._add_media(tag, [image_of(img_tensor, dataformats, boxes=boxes)], global_step, walltime)

    def add_histogram(
        self,
        tag: str,
        values: Any,
        global_step: Any = None,
        bins: Any = "tensorflow",
        walltime: float | None = None,
        max_bins: int | None = None,
    ) -> None:
        """Record the distribution of values.

        Args:
            bins: How many bins; ``"auto"``, ``"fd"`` and the like for `numpy.histogram`; or edges. ``"tensorflow"``
                means 64 bins of equal width, from the lowest value to the highest.
            max_bins: The most bins.
        """
        most = 64 if max_bins is None else min(64, int(max_bins))
        if isinstance(bins, str) and bins == "tensorflow":
            media = Histogram(values, bins=most)
        elif isinstance(bins, int):
            media = Histogram(values, bins=bins if max_bins is None else min(bins, int(max_bins)))
        else:
            # On this thread, since only NumPy knows these rules.
            counts, edges = numpy().histogram(array_of_numbers(values).reshape(-1), bins=bins)
            media = Histogram(counts=counts.tolist(), edges=edges.tolist())
        self._add_media(tag, [media], global_step, walltime)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,  # noqa: A002 - TensorBoard's names
        max: float,  # noqa: A002
        num: int,
        sum: float,  # noqa: A002
        sum_squares: float,
        bucket_limits: Any,
        bucket_counts: Any,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record a distribution from counts and the right edges of its buckets.

        Raises:
            OptionError: The limits and counts do not fit together.
        """
        limits, counts = (array_of_numbers(each).reshape(-1).tolist() for each in (bucket_limits, bucket_counts))
        try:
            media = bucket_histogram(float(min), float(max), limits, counts)
        except ValueError as error:
            raise OptionError(f"add_histogram_raw({tag!r}): {error}.") from None
        self._add_media(tag, [media], global_step, walltime)

    def add_figure(
        self, tag: str, figure: Any, global_step: Any = None, close: bool = True, walltime: float | None = None
    ) -> None:
        """Record a matplotlib figure, or a list of them.

        Args:
            close: Close them afterwards.
        """
        figures = list(figure) if isinstance(figure, list | tuple) else [figure]
        self._add_media(tag, [Figure(each) for each in figures], global_step, walltime)
        if close and figures:
            import matplotlib.pyplot

            for each in figures:
                matplotlib.pyplot.close(each)

    def add_video(
        self,
        tag: str,
        vid_tensor: Any,
        global_step: Any = None,
        fps: float = 4,
        walltime: float | None = None,
        *,
        dataformats: str = "NTCHW",
    ) -> None:
        """Record videos, several as a grid.

        Args:
            vid_tensor: Unsigned bytes are used unchanged; of other numbers, 0 is black and 1 is white.
            dataformats: Its dimensions in order.
        """
        frames = arranged(vid_tensor, dataformats, "NTHWC")
        self._add_media(tag, [Video(frames, fps=fps, channels="last", range=range_of(frames))], global_step, walltime)

    def add_audio(
        self,
        tag: str,
        snd_tensor: Any,
        global_step: Any = None,
        sample_rate: int = 44100,
        walltime: float | None = None,
    ) -> None:
        """Record sound: samples from -1 to 1, of one channel (of several in tensorboardX's layout, channels last)."""
        shape = tuple(snd_tensor.shape)
        samples = snd_tensor.reshape(-1) if len(shape) < 2 or 1 in shape else snd_tensor
        self._add_media(tag, [Audio(samples, rate=int(sample_rate))], global_step, walltime)

    def add_pr_curve(
        self,
        tag: str,
        labels: Any,
        predictions: Any,
        global_step: Any = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record a precision-recall curve of true classes and scores.

        Args:
            labels: The true class of each example, 0 or 1.
            predictions: Its score, from 0 to 1.
            num_thresholds: How many points the curve has at most.
            weights: How much each example counts.
        """
        rows = pr_counts(labels, predictions, int(num_thresholds), weights)
        self._add_media(tag, [pr_curve(rows)], global_step, walltime)

    def add_pr_curve_raw(
        self,
        tag: str,
        true_positive_counts: Any,
        false_positive_counts: Any,
        true_negative_counts: Any,
        false_negative_counts: Any,
        precision: Any,
        recall: Any,
        global_step: Any = None,
        num_thresholds: int = 127,
        weights: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Record a precision-recall curve from its values at rising thresholds."""
        counts = (true_positive_counts, false_positive_counts, true_negative_counts, false_negative_counts)
        rows = numpy().stack([array_of_numbers(each).reshape(-1) for each in (*counts, precision, recall)])
        self._add_media(tag, [pr_curve(rows)], global_step, walltime)

    def add_hparams(
        self,
        hparam_dict: dict[str, Any],
        metric_dict: dict[str, Any],
        hparam_domain_discrete: Any = None,
        run_name: str | None = None,
        global_step: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        """Record hyperparameters and the metrics that they led to.

        The first ones describe the run: they become its configuration. Others, and those with a ``run_name``, are a
        trial of their own, and become a run of their own beside this one, as in TensorBoard.

        Args:
            hparam_domain_discrete: Accepted; the values of all runs are known.
            run_name: The name of a run of its own; ``"."`` means the run of this writer.
            name: tensorboardX's name for ``run_name``.
        """
        if type(hparam_dict) is not dict or type(metric_dict) is not dict:
            raise OptionError(
                f"add_hparams({type(hparam_dict).__name__}, {type(metric_dict).__name__}): give two dictionaries, of "
                "hyperparameters and of metrics."
            )
        if isinstance(hparam_domain_discrete, str):  # tensorboardX has the name there
            name = hparam_domain_discrete
        title = run_name or name
        settings = {str(key): plain(value) for key, value in hparam_dict.items()}
        is_own = self._hparams in (None, settings) if title is None else _is_same_place(self.log_dir, title)
        if is_own or not isinstance(self._run, WriterRun):
            self._configure(settings)
            self._hparams = settings
            if metric_dict:
                self._add_numbers("", metric_dict, global_step, None)
            return
        self._record_trial(self._run, title or f"{time.time():.3f}", settings, metric_dict, global_step)

    def add_tensor(self, tag: str, tensor: Any, global_step: Any = None, walltime: float | None = None) -> None:
        """Ignored and logged once: only tensors with one element are recorded, by `add_scalar`."""
        _name_once("add_tensor")

    def add_graph(
        self, model: Any, input_to_model: Any = None, verbose: bool = False, use_strict_trace: bool = True, **_: Any
    ) -> None:
        """Accepted and named once: graphs are not recorded."""
        _name_once("add_graph")

    def add_onnx_graph(self, prototxt: Any = None, *, onnx_model_file: Any = None) -> None:
        """Accepted and named once: graphs are not recorded."""
        _name_once("add_onnx_graph")

    def add_openvino_graph(self, xmlname: Any) -> None:
        """Accepted and named once: graphs are not recorded."""
        _name_once("add_openvino_graph")

    def add_embedding(
        self,
        mat: Any,
        metadata: Any = None,
        label_img: Any = None,
        global_step: Any = None,
        tag: str = "default",
        metadata_header: Any = None,
    ) -> None:
        """Ignored and logged once: embeddings are not recorded."""
        _name_once("add_embedding")

    def add_mesh(
        self,
        tag: str,
        vertices: Any,
        colors: Any = None,
        faces: Any = None,
        config_dict: Any = None,
        global_step: Any = None,
        walltime: float | None = None,
    ) -> None:
        """Ignored and logged once: meshes are not recorded."""
        _name_once("add_mesh")

    def add_custom_scalars(self, layout: Any) -> None:
        """Accepted and named once: charts are arranged on the page."""
        _name_once("add_custom_scalars")

    def add_custom_scalars_multilinechart(
        self, tags: Sequence[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Accepted and named once: charts are arranged on the page."""
        _name_once("add_custom_scalars_multilinechart")

    def add_custom_scalars_marginchart(
        self, tags: Sequence[str], category: str = "default", title: str = "untitled"
    ) -> None:
        """Accepted and named once: charts are arranged on the page."""
        _name_once("add_custom_scalars_marginchart")

    def export_scalars_to_json(self, path: Any) -> None:
        """Ignored and logged once: use ``hookline runs export`` to write a run's records."""
        _name_once("export_scalars_to_json")

    @contextlib.contextmanager
    def use_metadata(self, *, global_step: Any = None, walltime: float | None = None) -> Iterator[Self]:
        """Use a step and a time for the calls inside that give none, as in tensorboardX."""
        before, self._defaults = self._defaults, {"global_step": global_step, "walltime": walltime}
        try:
            yield self
        finally:
            self._defaults = before

    def flush(self) -> None:
        """Wait until media and values on a device are in the journal; everything else is."""
        if self._run is not None and self._run.recorder is not None:
            self._run.recorder.flush()

    def close(self) -> None:
        """Leave the run, which ends with its last writer. A later method call resumes it."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def _open(self) -> None:
        if not self._writes:
            return
        with self._lock:
            if self._is_open:
                return
            run, self._folder, is_new = OPEN_RUNS.open(self.log_dir, self.purge_step, dict(self._options))
            if self._options and not is_new and self._run is None:
                names = ", ".join(sorted(self._options))
                logger.warning(
                    "SummaryWriter(%r) records in the run %r, which is open already: its options %s have no effect.",
                    *(self.log_dir, run.name, names),
                )
            if self._run is not run:
                self._places.clear()
            self.purge_step = None  # what was recorded since then stays
            self._run, self._is_open = run, True
            self._record = run.add if isinstance(run, WriterRun) else partial(record_row, run)
        if "://" not in self.log_dir:
            Path(self.log_dir).mkdir(parents=True, exist_ok=True)

    def _close(self, error: BaseException | None = None) -> None:
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        if isinstance(self._run, WriterRun):
            self._run.release(error)

    def _place(self, tag: str) -> tuple[str, str]:
        """The name and the axis that a tag is recorded under."""
        place = self._places.get(tag)
        if place is None:
            if not isinstance(tag, str) or not tag:
                raise OptionError(f"tag={tag!r:.200}: give a non-empty string.")
            name = joined_name(self._folder, tag)
            if len(self._places) > _MOST_TAGS:  # a program that generates tags
                self._places.clear()
            place = self._places[tag] = name, axis_of(name)
        return place

    def _add_numbers(self, main_tag: str, given: Mapping[str, Any], global_step: Any, walltime: float | None) -> None:
        if not self._is_open:
            self._open()
        if self._run is None:
            return
        numbers = {tag: number_of(tag, value) for tag, value in given.items()}
        step, at = self._stamp(global_step, walltime)
        by_axis: dict[str, dict[str, Any]] = {}
        for tag, value in numbers.items():
            name, axis = self._place(tag)
            by_axis.setdefault(axis, {})[name] = value
        for axis, values in by_axis.items():
            self._record(collect((values,), {}, defer), step, axis, at)

    def _add_media(self, tag: str, media: Sequence[Media], global_step: Any, walltime: float | None) -> None:
        if not self._is_open:
            self._open()
        if self._run is None:
            return
        name, axis = self._place(tag)
        step, at = self._stamp(global_step, walltime)
        record_media(self._run, name, media, step, axis, at)

    def _stamp(self, global_step: Any, walltime: float | None) -> tuple[int, float | None]:
        step = self._defaults.get("global_step") if global_step is None else global_step
        at = self._defaults.get("walltime") if walltime is None else walltime
        return 0 if step is None else int(step), None if at is None else float(at)

    def _configure(self, settings: Mapping[str, Any]) -> None:
        if not self._is_open:
            self._open()
        if self._run is not None:
            self._run.update_config(settings)

    def _record_trial(
        self, run: WriterRun, title: str, settings: dict[str, Any], metrics: Mapping[str, Any], global_step: Any
    ) -> None:
        options: dict[str, Any] = {"project": run.project, "root": run.root, "tags": run.tags, "config": settings}
        # The console is recorded in the writer's own run.
        trial = WriterRun(f"{run.name}/{title}", console=False, code=False, summary=False, **options)
        if run.output_dir is not None:
            trial.ctx.ids["run_id"] = run.output_dir.name
        trial.open()
        step, at = self._stamp(global_step, None)
        values = {tag: number_of(tag, value) for tag, value in metrics.items()}
        trial.add(collect((values,), {}, defer), step, "train", at)
        trial.release()


def _name_once(what: str, effect: str = "not recorded") -> None:
    if what not in _named:
        _named.add(what)
        logger.warning("SummaryWriter.%s is accepted, but %s.", what, effect)


def _is_same_place(log_dir: str, run_name: str) -> bool:
    """Whether a name for hyperparameters means the writer's own directory, as ``"."`` does."""
    return Path(log_dir, run_name).resolve() == Path(log_dir).resolve()
