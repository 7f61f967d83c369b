"""Media as values of `log()`: what is recorded of them, and what never happens to a training because of them."""

import io
import json
import logging
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from waiting import wait_until

import hookline as hl
from hookline._record.blobs import BlobStore, find_blob, read_blob
from hookline._record.media import Captured, Encoded
from hookline._record.media_writer import JOB_BYTES, MediaWriter
from hookline._record.records import Event, Media, TableRows


def record(tmp_path, *values, **named):
    """Log values in a run, one call each, and return the records other than numbers, and the run's directory."""
    with hl.run("media", root=tmp_path, project="p", summary=False) as run:
        for _ in run.steps(range(1)):
            for value in values:
                run.log(value)
            run.log(**named)
    assert run.output_dir is not None
    return media_of(run.output_dir), run.output_dir


def media_of(run_dir):
    kinds = (Media, TableRows)
    return [r for r in hl.read(run_dir) if isinstance(r, kinds) or (isinstance(r, Event) and r.name == "media_error")]


def pixels(run_dir, media):
    return np.asarray(PIL.Image.open(io.BytesIO(read_blob(run_dir, media.blob))))


COLOURS = np.arange(5 * 6 * 3, dtype=np.uint8).reshape(5, 6, 3)
GREY = np.arange(24, dtype=np.uint8).reshape(4, 6)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (COLOURS, COLOURS),
        (GREY, GREY),
        (GREY[..., None], GREY),
        (COLOURS.transpose(2, 0, 1), COLOURS),
        (torch.from_numpy(COLOURS).permute(2, 0, 1), COLOURS),
        (torch.from_numpy(COLOURS), COLOURS),
        (PIL.Image.fromarray(COLOURS), COLOURS),
        (GREY.astype(np.float32) / 255, GREY),
        (torch.tensor(GREY / 127.5 - 1.0).to(torch.bfloat16), None),
        (GREY > 10, (GREY > 10) * np.uint8(255)),
        (GREY.astype(np.int64), GREY),
        (GREY.tolist(), GREY),
    ],
)
def test_image_any_source_is_recorded_with_its_pixels(tmp_path, value, expected):
    [media], run_dir = record(tmp_path, picture=hl.Image(value, caption="a picture"))
    assert (media.type, media.name, media.step, media.format, media.caption) == (
        "image",
        "picture",
        1,
        "png",
        "a picture",
    )
    if expected is not None:
        assert np.array_equal(pixels(run_dir, media), expected)
        assert (media.data["height"], media.data["width"]) == expected.shape[:2]


def test_image_from_path_and_bytes_keeps_the_file_as_it_is(tmp_path):
    path = tmp_path / "given.jpeg"
    PIL.Image.fromarray(COLOURS).save(path)
    [first, second], run_dir = record(tmp_path, {"a": hl.Image(path)}, {"b": hl.Image(path.read_bytes())})
    assert first.blob == second.blob
    assert (first.format, second.format) == ("jpeg", "jpeg")
    assert read_blob(run_dir, first.blob) == path.read_bytes()


def test_image_of_matplotlib_figure_is_a_picture(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 1))
    figure.subplots().plot([1, 2, 3])
    [media, other], run_dir = record(tmp_path, {"a": hl.Image(figure)}, {"b": hl.Figure(figure)})
    assert pixels(run_dir, media).ndim == 3
    assert (other.type, other.format) == ("figure", "png")


def test_image_batch_becomes_a_grid(tmp_path):
    batch = np.stack([np.full((4, 6), 10 * index, np.uint8) for index in range(5)])
    [media], run_dir = record(tmp_path, grid=hl.Image(batch, columns=3))
    grid = pixels(run_dir, media)
    assert (grid.shape, media.data["images"]) == ((10, 22), 5)
    assert [int(grid[1, 1]), int(grid[1, 9]), int(grid[1, 17]), int(grid[7, 1]), int(grid[7, 9]), int(grid[7, 17])] == [
        0,
        10,
        20,
        30,
        40,
        0,
    ]


def test_image_boxes_and_masks_are_recorded_with_it(tmp_path):
    mask = (GREY > 5).astype(np.int64)
    image = hl.Image(
        COLOURS,
        boxes=[{"box": (1, 1, 3, np.float32(2)), "label": "cat", "score": 0.5}],
        masks={"prediction": torch.from_numpy(mask)},
        labels={0: "background", 1: "cat"},
    )
    [media], run_dir = record(tmp_path, seen=image)
    assert media.data["boxes"] == [{"box": [1.0, 1.0, 3.0, 2.0], "label": "cat", "score": 0.5}]
    assert media.data["labels"] == {"0": "background", "1": "cat"}
    part = media.data["parts"]["masks/prediction"]
    assert np.array_equal(np.asarray(PIL.Image.open(io.BytesIO(read_blob(run_dir, part["blob"])))), mask)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (hl.Image(np.zeros((3,))), ["image 'bad'", "(3,)", "(height, width)"]),
        (hl.Image(np.zeros((4, 5, 7, 2))), ["'bad'", "(4, 5, 7, 2)", "channels"]),
        (hl.Image(np.zeros((0, 4))), ["'bad'", "(0, 4)"]),
        (hl.Image(np.full((4, 4), math.nan)), ["'bad'", "(4, 4)", "NaN"]),
        (hl.Image("no/such/file.png"), ["'bad'", "No such file"]),
        (hl.Image(object()), ["'bad'", "object"]),
        (hl.Image(np.zeros((4, 4)), format="bmp"), ["'bad'", "'bmp'", "png"]),
        (hl.Image(np.zeros((4, 4)), boxes=[{"label": "x"}]), ["'bad'", "box"]),
        (hl.Audio(np.zeros(8)), ["audio 'bad'", "rate="]),
        (hl.Audio(np.zeros((2, 2, 2)), rate=8000), ["'bad'", "(2, 2, 2)", "channels"]),
        (hl.Audio(np.zeros((65, 65)), rate=8000), ["'bad'", "(65, 65)", "64 channels"]),
        (hl.Audio(np.full(8, math.inf), rate=8000), ["'bad'", "(8,)", "infinite"]),
        (hl.Video(np.zeros((4, 4))), ["video 'bad'", "(4, 4)", "frames"]),
        (hl.Video(np.zeros((2, 4, 4, 3)), fps=0), ["'bad'", "fps=0"]),
        (hl.Histogram([]), ["histogram 'bad'", "no values"]),
        (hl.Histogram(["a"]), ["'bad'", "no real numbers"]),
        (hl.Histogram(counts=[1], edges=[0]), ["'bad'", "edge"]),
        (hl.Histogram(), ["'bad'", "counts= and edges="]),
        (hl.Figure(3), ["figure 'bad'", "int"]),
        (hl.Text(3), ["text 'bad'", "int"]),
        (hl.File("."), ["file 'bad'"]),
        (hl.File("no/such/file"), ["'bad'", "No such file"]),
    ],
)
def test_media_bad_input_is_reported_with_its_name_and_training_continues(tmp_path, caplog, value, words):
    with caplog.at_level(logging.ERROR, "hookline"), hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for _ in run.steps(range(2)):
            run.log(loss=0.5, bad=value, good=hl.Text("fine"))
    assert run.output_dir is not None
    *errors, first, second = sorted(media_of(run.output_dir), key=lambda r: isinstance(r, Media))
    assert [r.name for r in errors] == ["media_error", "media_error"]
    assert (first.name, second.name) == ("good", "good")
    for word in words:
        assert word in errors[0].data["reason"]
    assert run.step == 2


def test_media_changed_in_place_after_log_is_recorded_as_it_was(tmp_path):
    array, tensor, rows = GREY.copy(), torch.zeros(100), [["a", 1]]
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for _ in run.steps(range(1)):
            run.log(picture=hl.Image(array), values=hl.Histogram(tensor), table=hl.Table(["x", "y"], rows))
            array[:], tensor[:] = 0, 7.0
            rows[0][1] = 2
    assert run.output_dir is not None
    found = {r.name: r for r in media_of(run.output_dir)}
    assert np.array_equal(pixels(run.output_dir, found["picture"]), GREY)
    assert (found["values"].data["low"], found["values"].data["high"]) == (-0.5, 0.5)
    assert found["table"].rows == [["a", 1]]


LAYOUTS = {
    "contiguous": lambda array: array.copy(),
    "fortran": lambda array: np.asfortranarray(array),
    "strided": lambda array: array.repeat(2, axis=0)[::2],
    "reversed": lambda array: array[::-1, ::-1].copy()[::-1, ::-1],
}


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float16", "float32", "float64"])
def test_large_arrays_of_any_layout_changed_after_log_are_recorded_as_they_were(tmp_path, dtype):
    values = (
        np.random.default_rng(3).integers(0, 100, (300, 300)).astype(dtype)
    )  # large: in a buffer that is used again
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for step in run.steps(2):
            for name, laid_out in LAYOUTS.items():
                array = laid_out(values + np.asarray(step, dtype))
                run.log({name: hl.Histogram(array, bins=10)})
                array[...] = 7
    for name in LAYOUTS:
        for step, record in enumerate(r for r in media_of(run.output_dir) if r.name == name):
            counts, _ = np.histogram(values.astype(float) + step, 10)
            assert (record.data["low"], record.data["counts"]) == (step, counts.tolist()), (name, step)


def test_media_list_under_one_name_is_numbered(tmp_path):
    found, _ = record(tmp_path, samples=[hl.Image(GREY), hl.Text("one"), hl.Image(GREY)])
    assert [(r.name, r.index, r.type) for r in found] == [
        ("samples", 0, "image"),
        ("samples", 1, "text"),
        ("samples", 2, "image"),
    ]


def test_media_equal_content_is_stored_once_across_runs(tmp_path):
    runs = [record(tmp_path, a=hl.Image(COLOURS))[1] for _ in range(3)]
    assert len({r.blob for run_dir in runs for r in media_of(run_dir)}) == 1
    assert len(list(BlobStore(tmp_path / ".blobs").digests())) == 1


def test_media_from_callbacks_validations_and_results_are_recorded(tmp_path):
    class Pictures(hl.Callback):
        def on_step_end(self, loop, step_idx, batch, metrics):
            assert list(metrics) == ["loss"]  # numbers only: subscribers iterate over them
            return {"returned": hl.Image(GREY)}

        def on_log(self, loop, step, metrics):
            assert all(isinstance(value, float) for value in metrics.values())

        def on_train_end(self, loop):
            loop.log(last=hl.Text("end"))

    with hl.run("m", root=tmp_path, project="p", callbacks=[Pictures()], strict=True, summary=False) as run:
        for _ in run.steps(range(1)):
            run.log(loss=0.5, logged=hl.Image(COLOURS))
            with run.validate() as val:
                val.log(loss=1.0, shown=hl.Image(COLOURS))
                val.log(loss=2.0, shown=hl.Image(GREY))
    assert run.output_dir is not None
    found = sorted((r.axis, r.name, r.step, r.index) for r in media_of(run.output_dir))
    returned = next(name for _, name, *_ in found if "returned" in name)
    assert found == [
        ("eval", "val/shown", 1, 0),
        ("eval", "val/shown", 1, 1),
        ("train", "last", 1, 0),
        ("train", "logged", 1, 0),
        ("train", returned, 1, 0),
    ]


def test_media_in_a_loop_that_only_logs_completes_steps(tmp_path):
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for _ in range(3):
            run.log(picture=hl.Image(GREY))
    assert run.output_dir is not None
    assert [(r.name, r.step) for r in media_of(run.output_dir)] == [("picture", 0), ("picture", 1), ("picture", 2)]


@pytest.mark.parametrize("kind", ["numpy", "torch", "list"])
def test_histogram_counts_are_those_of_numpy(tmp_path, kind):
    values = np.random.default_rng(3).normal(size=5000)
    values[7] = math.nan
    given = {"numpy": values, "torch": torch.from_numpy(values), "list": values.tolist()}[kind]
    [media], _ = record(tmp_path, values=hl.Histogram(given, bins=20))
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, 20)
    assert media.data["counts"] == counts.tolist()
    assert (media.data["low"], media.data["high"]) == (edges[0], edges[-1])
    assert (media.data["count"], media.data["nonfinite"]) == (4999, 1)
    assert media.data["mean"] == pytest.approx(finite.mean())
    assert media.data["std"] == pytest.approx(finite.std())


def test_histogram_of_counts_and_edges_is_recorded_as_given(tmp_path):
    even, odd = hl.Histogram(counts=[1, 2], edges=[0, 1, 2]), hl.Histogram(counts=[1, 2], edges=[0, 1, 10])
    [first, second], _ = record(tmp_path, {"a": even}, {"b": odd})
    assert first.data == {"counts": [1, 2], "low": 0.0, "high": 2.0, "count": 3}
    assert second.data["edges"] == [0.0, 1.0, 10.0]


@pytest.mark.parametrize(("channels", "channels_first"), [(0, False), (1, False), (2, False), (1, True), (2, True)])
def test_audio_of_an_array_is_a_wav_file(tmp_path, channels, channels_first):
    import wave

    samples = np.stack([np.sin(np.arange(800) / 5), np.zeros(800)], axis=1)[:, :channels]
    if channels == 0:
        samples = np.sin(np.arange(800) / 5)
    given = torch.from_numpy(samples.T.copy()) if channels_first else samples
    [media], run_dir = record(tmp_path, tone=hl.Audio(given, rate=8000))
    with wave.open(io.BytesIO(read_blob(run_dir, media.blob))) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (8000, channels or 1, 800)
        found = np.frombuffer(file.readframes(800), "<i2").reshape(samples.shape)
    assert np.abs(found - samples * 32767).max() <= 1
    assert media.data == {"rate": 8000, "seconds": 0.1}


@pytest.mark.parametrize("suffix", ["webp", "gif", "mp4"])
def test_video_of_an_array_has_its_frames(tmp_path, suffix):
    frames = np.stack([np.full((16, 16, 3), 50 * index, np.uint8) for index in range(4)])
    [media], run_dir = record(tmp_path, clip=hl.Video(frames, fps=4, format=suffix))
    content = io.BytesIO(read_blob(run_dir, media.blob))
    if suffix == "mp4":
        import av

        with av.open(content) as container:
            assert len(list(container.decode(video=0))) == 4
    else:
        assert PIL.Image.open(content).n_frames == 4  # type: ignore[attr-defined]
    assert media.data == {"frames": 4, "width": 16, "height": 16, "fps": 4.0}


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
def test_several_videos_become_a_grid(tmp_path, make):
    videos = np.stack([np.full((2, 3, 8, 8), 40 * index, np.uint8) for index in range(5)])  # as TensorBoard takes them
    [media], run_dir = record(tmp_path, clips=hl.Video(make(videos), format="gif"))
    side = 3 * 8 + 2 * 2
    assert media.data == {"frames": 2, "width": side, "height": 2 * 8 + 2, "fps": 8.0}
    picture = PIL.Image.open(io.BytesIO(read_blob(run_dir, media.blob))).convert("L")
    shades = [picture.getpixel((column * 10 + 4, row * 10 + 4)) for row in range(2) for column in range(3)]
    assert np.abs(np.array(shades) - [0, 40, 80, 120, 160, 0]).max() <= 2


def test_figure_of_plotly_is_recorded_as_json(tmp_path):
    graph_objects = pytest.importorskip("plotly.graph_objects")
    figure = graph_objects.Figure(data=[graph_objects.Scatter(y=[1, 2, 3])])
    [media, other], run_dir = record(tmp_path, {"a": hl.Figure(figure)}, {"b": hl.Figure({"data": [{"y": [1]}]})})
    assert media.format == other.format == "plotly.json"
    assert json.loads(read_blob(run_dir, media.blob))["data"][0]["type"] == "scatter"


def test_texts_are_recorded_with_their_type(tmp_path):
    values = {"a": hl.Text("plain"), "b": hl.Markdown("# title"), "c": hl.Html("<b>bold</b>")}
    found, run_dir = record(tmp_path, **values)
    assert [(r.type, r.format, read_blob(run_dir, r.blob)) for r in sorted(found, key=lambda r: r.name)] == [
        ("text", "txt", b"plain"),
        ("markdown", "md", b"# title"),
        ("html", "html", b"<b>bold</b>"),
    ]


def test_small_file_is_recorded_as_it_was_at_the_call(tmp_path):
    path = tmp_path / "figure.png"
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for step in run.steps(range(3)):
            PIL.Image.new("L", (4, 4), 100 + step).save(path)
            run.log(figure=hl.Image(path), raw=hl.File(path))
            path.write_bytes(b"not yet complete")
        path.unlink()
    assert run.output_dir is not None
    found = media_of(run.output_dir)
    pixels = [PIL.Image.open(io.BytesIO(read_blob(run.output_dir, r.blob))).getpixel((0, 0)) for r in found]
    assert [(r.name, r.data["file"], value) for r, value in zip(found, pixels, strict=True)] == [
        (name, "figure.png", 100 + step) for step in range(3) for name in ("figure", "raw")
    ]


def test_file_deleted_after_log_is_recorded_and_one_that_changed_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline._record.media.SMALL_FILE_BYTES", 3)
    deleted, changed = tmp_path / "deleted.bin", tmp_path / "changed.bin"
    deleted.write_bytes(b"kept")
    changed.write_bytes(b"before")
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for _ in run.steps(range(1)):
            run.log(deleted=hl.File(deleted), changed=hl.File(changed))
            deleted.unlink()
            changed.write_bytes(b"after that")
    assert run.output_dir is not None
    kept, error = sorted(media_of(run.output_dir), key=lambda r: isinstance(r, Event))
    assert (read_blob(run.output_dir, kept.blob), kept.data) == (b"kept", {"file": "deleted.bin"})
    assert "changed before it was copied" in error.data["reason"]


def test_table_rows_are_recorded_once_as_they_are_added(tmp_path):
    table = hl.Table(["prompt", "score"], [["first", 0.5]])
    with hl.run("m", root=tmp_path, project="p", summary=False) as run:
        for index in run.steps(range(3)):
            if index == 0:
                run.log(answers=table)
            table.append({"score": float(index), "prompt": f"row {index}"})
            table.extend([["nan", math.nan], ["none", None]])
            run.log(answers=table)
    assert run.output_dir is not None
    found = media_of(run.output_dir)
    assert {r.table for r in found} == {table.id}
    assert [row for r in sorted(found, key=lambda r: r.start) for row in r.rows][:2] == [["first", 0.5], ["row 0", 0.0]]
    assert sum(len(r.rows) for r in found) == len(table) == 10
    assert [r.start for r in sorted(found, key=lambda r: r.start)] == sorted({r.start for r in found})


def test_table_cells_may_be_media_and_structures(tmp_path):
    rows = [[hl.Image(GREY, caption="one"), {"a": [1, 2]}, np.float32(0.5)], [hl.Image(np.zeros(3)), None, "x"]]
    [found], run_dir = record(tmp_path, t=hl.Table(["picture", "nested", "number"], rows))
    cell = found.rows[0][0]["media"]
    assert (cell["type"], cell["caption"], find_blob(run_dir, cell["blob"]) is not None) == ("image", "one", True)
    assert found.rows[0][1:] == [{"a": [1, 2]}, 0.5]
    assert "cannot be recorded" in found.rows[1][0]


def test_table_of_data_frames_has_their_rows(tmp_path):
    pandas, polars, pyarrow = (pytest.importorskip(name) for name in ("pandas", "polars", "pyarrow"))
    data = {"a": [1, 2], "b": ["x", "y"]}
    frames = [pandas.DataFrame(data), polars.DataFrame(data), pyarrow.table(data)]
    found, _ = record(tmp_path, *({f"t{index}": hl.Table(frame)} for index, frame in enumerate(frames)))
    assert [(r.columns, r.rows) for r in found] == [(["a", "b"], [[1, "x"], [2, "y"]])] * 3


@pytest.mark.parametrize(
    ("columns", "rows", "words"),
    [
        ("ab", [], "'ab'"),
        ([], [], "distinct"),
        (["a", "a"], [], "distinct"),
        (["a"], [[1, 2]], "2 for 1"),
        (["a"], [{"b": 1}], "'b'"),
        (5, [], r"Table\(5\).*column names"),
    ],
)
def test_table_that_does_not_fit_its_columns_is_refused(columns, rows, words):
    with pytest.raises(hl.OptionError, match=words):
        hl.Table(columns, rows)


def test_table_of_many_rows_is_recorded_whole(tmp_path):
    table = hl.Table(["n", "text"], [[index, "word " * 20] for index in range(5000)])
    found, _ = record(tmp_path, t=table)
    assert [row[0] for r in found for row in r.rows] == list(range(5000))
    assert max(len(r.rows) for r in found) <= 500


def test_media_after_a_resume_replaces_what_came_after_the_checkpoint(tmp_path):
    def train(stop_at, resume=None):
        with hl.run(
            "m", root=tmp_path, project="p", resume=resume, save=lambda d: None, load=lambda d: None, summary=False
        ) as run:
            for _ in run.steps(range(6)):
                run.log(step_of=hl.Text(f"{run.step} {stop_at}"))
                if run.step == 2:
                    run.save_checkpoint()
                if run.step == stop_at:
                    run.request_stop("enough")
        return run.output_dir

    train(4)
    run_dir = train(99, resume="last")
    found = [(r.step, read_blob(run_dir, r.blob).decode()) for r in media_of(run_dir)]
    assert sorted(found) == [(1, "0 4"), (2, "1 4"), (3, "2 4"), (4, "3 99"), (5, "4 99"), (6, "5 99")]


class Gated(Captured):
    """Captured media whose encoding waits for a gate."""

    def __init__(self, gate, nbytes):
        super().__init__("text", lambda: (gate.wait(60), Encoded(b"content", "txt"))[1], nbytes)


def test_media_writer_loses_only_what_has_no_room_and_counts_it(tmp_path, caplog):
    gate, records = threading.Event(), []
    run_dir = tmp_path / "p" / "run"
    run_dir.mkdir(parents=True)
    writer = MediaWriter(run_dir, records.append, memory_bytes=20_000, encoders=1)
    with caplog.at_level(logging.ERROR, "hookline"):
        for step in range(20):
            writer.submit("x", [Gated(gate, 2000 - JOB_BYTES)], (0.0, step, "train"))
        gate.set()
        writer.close()
    assert [r.step for r in records if isinstance(r, Media)] == list(range(10))
    assert [r.data for r in records if isinstance(r, Event)] == [{"count": 10}]
    assert "10 images, tables or files" in caplog.text


def test_media_writer_spills_what_waits_and_loses_nothing(tmp_path):
    gate, records = threading.Event(), []
    run_dir = tmp_path / "p" / "run"
    run_dir.mkdir(parents=True)
    writer = MediaWriter(run_dir, records.append, memory_bytes=300_000, encoders=1)
    writer.submit("gate", [Gated(gate, 10)], (0.0, 0, "train"))
    arrays = [np.full((100, 100), index, np.uint8) for index in range(40)]
    for step, array in enumerate(arrays):
        writer.submit("x", [hl.Image(array).capture("x")], (0.0, step, "train"))
        # What the spill file took leaves room in memory for the next.
        wait_until(lambda: writer._in_memory <= 200_000)
    gate.set()
    writer.close()
    found = [r for r in records if isinstance(r, Media) and r.name == "x"]
    assert [int(pixels(run_dir, r)[0, 0]) for r in found] == list(range(40))
    assert writer.lost == 0


KILLED = """
import sys, itertools
import numpy as np
import hookline as hl

with hl.run("m", root=sys.argv[1], project="p", summary=False) as run:
    table = hl.Table(["step", "picture"])
    run.log(table=table)
    print("ready", flush=True)
    for index in run.steps(itertools.count()):
        array = np.full((32, 32, 3), index % 251, np.uint8)
        run.log(loss=float(index), picture=hl.Image(array), values=hl.Histogram(array))
        table.append([index, hl.Image(array)])
"""


def test_media_killed_process_leaves_whole_blobs_for_every_record(tmp_path):
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        run_dir = max((tmp_path / "p").iterdir(), key=lambda path: path.stat().st_ctime)
        wait_until(lambda run_dir=run_dir: len(media_of(run_dir)) > 40)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
    checked = 0
    for run_dir in (tmp_path / "p").iterdir():
        for r in media_of(run_dir):
            blobs = [r.blob] if isinstance(r, Media) else [row[1]["media"]["blob"] for row in r.rows]
            for blob in filter(None, blobs):
                assert read_blob(run_dir, blob)
                checked += 1
    assert checked > 20


def test_media_in_a_forked_child_are_recorded_by_it(tmp_path):
    code = """
import os, sys, numpy as np, hookline as hl
with hl.run("m", root=sys.argv[1], project="p", summary=False) as run:
    for _ in run.steps(range(1)):
        run.log(a=hl.Image(np.zeros((4, 4), np.uint8)))
    run.recorder.flush()
    if os.fork() == 0:
        run.recorder.log(b=hl.Image(np.ones((4, 4), np.uint8)), step=1)
        run.recorder.flush()
        os._exit(0)
    os.wait()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code, str(tmp_path)], check=True, timeout=100)
    [run_dir] = (tmp_path / "p").iterdir()
    assert sorted(r.name for r in media_of(run_dir)) == ["a", "b"]


def test_media_where_nothing_is_recorded_are_dropped():
    with hl.run("m", root=None, summary=False) as run:
        for _ in run.steps(range(2)):
            run.log(loss=0.5, picture=hl.Image(GREY))
    assert run.metrics == {"loss": 0.5}


def test_blobs_that_nothing_refers_to_are_collected(tmp_path):
    from hookline._record.blobs import root_references

    [media], _ = record(tmp_path, a=hl.Image(GREY))
    store = BlobStore(tmp_path / ".blobs")
    with store.writing() as batch:
        unused = batch.add(b"nothing refers to this")
        batch.commit()
    (Path(store.directory) / "left.partial").write_bytes(b"from a killed process")
    assert store.collect_garbage(lambda: root_references(tmp_path), dry_run=True) == (1, unused.size)
    assert store.collect_garbage(lambda: root_references(tmp_path)) == (1, unused.size)
    assert list(store.digests()) == [media.blob]
    assert not list(store.directory.glob("*.partial"))


def test_blobs_touched_while_references_are_looked_for_are_kept(tmp_path):
    store = BlobStore(tmp_path / ".blobs")
    with store.writing() as batch:
        info = batch.add(b"content")
        batch.commit()

    def references():
        with store.writing() as again:  # a run that logs equal content meanwhile; its record is not written yet
            again.add(b"content")
            again.commit()
        return set()

    assert store.collect_garbage(references) == (0, 0)
    assert store.has(info.digest)


def test_image_channels_range_and_quality_decide_its_pixels_and_bytes(tmp_path):
    ambiguous = np.arange(3 * 5 * 3, dtype=np.uint8).reshape(3, 5, 3)
    noise = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    values = {
        "first": hl.Image(ambiguous, channels="first"),
        "last": hl.Image(ambiguous, channels="last"),
        "ranged": hl.Image(np.array([[0.0, 1.0]]), range=(0.0, 2.0)),
        "good": hl.Image(noise, format="jpeg", quality=95),
        "poor": hl.Image(noise, format="jpeg", quality=5),
    }
    found, run_dir = record(tmp_path, **values)
    named = {media.name: media for media in found}
    assert np.array_equal(pixels(run_dir, named["first"]), ambiguous.transpose(1, 2, 0))
    assert np.array_equal(pixels(run_dir, named["last"]), ambiguous)
    assert pixels(run_dir, named["ranged"]).tolist() == [[0, 128]]
    assert named["poor"].size < named["good"].size


def test_video_channels_and_range_decide_its_pixels(tmp_path):
    frames = np.zeros((3, 3, 8, 3))
    first = hl.Video(frames, channels="first", range=(-1.0, 1.0), format="gif")
    last = hl.Video(frames, channels="last", format="gif")
    [one, other], run_dir = record(tmp_path, {"a": first}, {"b": last})
    assert (one.data["height"], one.data["width"]) == (8, 3)
    assert (other.data["height"], other.data["width"]) == (3, 8)
    pictures = [PIL.Image.open(io.BytesIO(read_blob(run_dir, media.blob))).convert("L") for media in (one, other)]
    shades = [picture.getpixel((0, 0)) for picture in pictures]
    assert shades == [128, 0]


@pytest.mark.parametrize(
    "value",
    [
        hl.Audio(np.zeros(8), rate=8000, caption="said"),
        hl.Video(np.zeros((2, 4, 4, 3)), caption="said"),
        hl.Histogram([1.0], caption="said"),
        hl.Figure({"data": []}, caption="said"),
        hl.Text("x", caption="said"),
        hl.Markdown("x", caption="said"),
        hl.Html("x", caption="said"),
        hl.File(__file__, caption="said"),
        hl.plots.confusion_matrix([0, 1], [0, 1], caption="said"),
        hl.plots.roc([0, 1], [0.1, 0.9], caption="said"),
        hl.plots.pr_curve([0, 1], [0.1, 0.9], caption="said"),
    ],
)
def test_media_caption_is_recorded(tmp_path, value):
    [media], _ = record(tmp_path, shown=value)
    assert media.caption == "said"
