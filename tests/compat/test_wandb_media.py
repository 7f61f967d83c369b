"""Data types of the drop-in: images, video, audio, histograms, tables, charts and files, and how they are recorded."""

import io
import json
from datetime import datetime

import numpy as np
import pytest
from compat.wandb_support import drop_in, last_run, rows

import hookline as hl

__all__ = ["drop_in"]


def media_of(names=None):
    return hl.runs("runs").latest().media(names)


def test_image_keeps_its_pixels_from_when_it_was_made(drop_in):
    pixels = np.full((2, 3, 3), 7, dtype=np.int64)
    run = drop_in.init()
    image = drop_in.Image(pixels, caption="c", grouping=1, normalize=False)
    pixels[:] = 200
    run.log({"a": image})
    run.log({"a": image})
    run.finish()
    found = media_of("a")
    assert [np.asarray(each.image()).tolist() for each in found] == [[[[7] * 3] * 3] * 2] * 2
    assert (found[0].caption, found[0].data["width"], np.asarray(image.image).shape) == ("c", 3, (2, 3, 3))


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: np.zeros((4, 6)), (6, 4)),
        (lambda: np.zeros((4, 6, 1)), (6, 4)),
        (lambda: np.zeros((4, 6, 4), dtype=np.uint8), (6, 4)),
        (lambda: pytest.importorskip("torch").zeros(3, 4, 6), (6, 4)),
        (lambda: pytest.importorskip("torch").zeros(1, 4, 6, dtype=pytest.importorskip("torch").int64), (6, 4)),
        (lambda: pytest.importorskip("PIL.Image").new("L", (6, 4)), (6, 4)),
    ],
)
def test_image_of_any_kind_has_its_size(drop_in, make, size):
    image = drop_in.Image(make())
    assert (image._width, image._height) == size
    assert image.image.size == size
    with drop_in.init() as run:
        run.log({"i": image})
    [found] = media_of("i")
    assert (found.data["width"], found.data["height"]) == size


def test_image_of_a_path_and_of_a_figure(drop_in, tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    pytest.importorskip("PIL.Image").new("RGB", (5, 4)).save(tmp_path / "a.png")
    figure, axes = pyplot.subplots()
    axes.plot([1, 2])
    with drop_in.init() as run:
        images = [drop_in.Image("a.png"), drop_in.Image(figure), drop_in.Image(drop_in.Image("a.png", caption="copy"))]
        pyplot.close(figure)
        run.log({"l": images, "figure": figure, "axes": axes})
    assert [each.type for each in media_of("l")] == ["image"] * 3
    assert [each.type for each in media_of(["figure", "axes"])] == ["image"] * 2
    assert (images[2]._caption, images[2].image.size, images[1].image.format) == ("copy", (5, 4), "PNG")


def test_image_with_boxes_and_masks_that_were_made_before_is_recorded_with_them(drop_in):
    labels = {1: "cat"}
    box = {"position": {"minX": 0, "maxX": 1, "minY": 0, "maxY": 0.5}, "class_id": 1}
    boxes = drop_in.data_types.BoundingBoxes2D({"box_data": [box], "class_labels": labels}, key="a")
    mask = drop_in.data_types.ImageMask(val={"mask_data": np.ones((4, 4)), "class_labels": labels}, key="m")
    with drop_in.init() as run:
        run.log({"i": drop_in.Image(np.zeros((4, 4)), boxes={"a": boxes}, masks={"m": mask})})
    [found] = media_of("i")
    assert found.data["boxes"] == [{"box": [0, 0, 4, 2], "label": "cat"}]
    assert list(found.data["parts"]) == ["masks/m"]


def test_image_with_boxes_masks_and_classes_is_recorded_in_pixels(drop_in):
    boxes = {
        "a": {
            "box_data": [
                {"position": {"minX": 0.25, "maxX": 0.5, "minY": 0, "maxY": 1}, "class_id": 1, "scores": {"p": 0.5}},
                {"position": {"middle": [4, 4], "width": 2, "height": 4}, "domain": "pixel", "box_caption": "x"},
            ],
            "class_labels": {1: "cat"},
        }
    }
    masks = {"m": {"mask_data": np.ones((8, 8), dtype=np.int64), "class_labels": {1: "cat"}}}
    classes = drop_in.Classes([{"id": 2, "name": "dog"}])
    image = drop_in.Image(np.zeros((8, 8, 3)), boxes=boxes, masks=masks, classes=classes, mode="RGB", file_type="jpg")
    with drop_in.init() as run:
        run.log({"i": image})
    [found] = media_of("i")
    assert found.data["boxes"] == [
        {"box": [2, 0, 4, 8], "label": "cat", "score": 0.5},
        {"box": [3, 2, 5, 6], "label": "x"},
    ]
    assert (found.data["labels"], list(found.data["parts"]), found.format) == (
        {"1": "cat", "2": "dog"},
        ["masks/m"],
        "jpeg",
    )


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"data_or_path": np.zeros((2, 2, 5))}, ValueError, "Un-supported shape"),
        ({"data_or_path": np.zeros((2, 2)), "file_type": "tiff"}, ValueError, "file_type must be one of"),
        ({"data_or_path": "missing.png"}, FileNotFoundError, "missing.png"),
        ({"data_or_path": np.zeros((2, 2)), "boxes": []}, ValueError, '"boxes" argument must be a dictionary'),
        ({"data_or_path": np.zeros((2, 2)), "masks": []}, ValueError, '"masks" argument must be a dictionary'),
        ({"data_or_path": np.zeros((2, 2)), "masks": {"m": {}}}, TypeError, 'Missing key "mask_data"'),
        ({"data_or_path": np.zeros((2, 2)), "boxes": {"b": {}}}, TypeError, "must be a mapping in the list"),
        ({"data_or_path": np.array(["a"])}, TypeError, "is not an array of numbers"),
    ],
)
def test_image_that_is_none_is_refused(drop_in, arguments, error, message):
    with pytest.raises(error, match=message):
        drop_in.Image(**arguments)


def test_video_audio_and_html_are_recorded(drop_in, tmp_path):
    (tmp_path / "page.html").write_text("<i>from a file</i>")
    frames = np.zeros((2, 3, 4, 6), dtype=np.uint8)
    with drop_in.init() as run:
        run.log(
            {
                "v": drop_in.Video(frames, caption="c", fps=8, format="gif"),
                "w": drop_in.Video(frames[None], format="webm"),
            }
        )
        run.log(
            {
                "a": drop_in.Audio(np.zeros(800), sample_rate=100, caption="s"),
                "h": drop_in.Html("<b>x</b>", inject=False),
            }
        )
        run.log(
            {
                "f": drop_in.Html("page.html"),
                "o": drop_in.Html(io.StringIO("open")),
                "t": drop_in.Html("page.html", data_is_not_path=True),
            }
        )
    found = {each.name: each for each in media_of()}
    assert {name: each.format for name, each in found.items() if each.type == "video"} == {"v": "gif", "w": "webp"}
    assert (found["a"].data["seconds"], found["v"].data["fps"], found["v"].caption) == (8, 8, "c")
    texts = [found[name].text() for name in "hfot"]
    assert texts == ["<b>x</b>", "<i>from a file</i>", "open", "page.html"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda wandb: wandb.Video(np.zeros((2, 3, 4, 6))), "requires a `format`"),
        (lambda wandb: wandb.Video(np.zeros((2, 3, 4, 6)), format="avi"), "accepts gif, mp4"),
        (lambda wandb: wandb.Video("a.avi"), "accepts gif, mp4"),
        (lambda wandb: wandb.Video(np.zeros((4, 6)), format="gif"), "atleast 4 dimensions"),
        (lambda wandb: wandb.Audio(np.zeros(3)), '"sample_rate" is required'),
        (lambda wandb: wandb.Html(3), "must be a string or an io object"),
        (lambda wandb: wandb.Plotly(3), "must be plotly figures"),
        (lambda wandb: wandb.Histogram(np_histogram=([1], [1], [1])), "tuple of"),
        (lambda wandb: wandb.Histogram(np_histogram=([1, 2], [1, 2])), r"len\(bins\)"),
        (lambda wandb: wandb.Histogram(range(9), num_bins=600), "maximum length"),
        (lambda wandb: wandb.Object3D(np.zeros((2, 5))), "shape of the numpy array"),
        (lambda wandb: wandb.Molecule("a.txt"), "only the following file types"),
    ],
)
def test_data_type_that_is_wrong_is_refused(drop_in, make, message):
    with pytest.raises(ValueError, match=message):
        make(drop_in)


def test_histogram_and_plotly_are_recorded_as_they_were_made(drop_in):
    go = pytest.importorskip("plotly.graph_objects")
    with drop_in.init() as run:
        histogram = drop_in.Histogram([1, 2, 2, 3], num_bins=2)
        run.log({"h": histogram, "p": drop_in.Plotly(go.Figure(go.Scatter(x=[1], y=[2])))})
    found = {each.name: each for each in media_of()}
    assert (histogram.histogram, histogram.bins) == ([1, 3], [1.0, 2.0, 3.0])
    assert (found["h"].data["counts"], found["p"].format) == ([1, 3], "plotly.json")
    assert rows()[0]["h"] == {"_type": "histogram", "values": [1, 3], "bins": [1, 2, 3]}


def test_types_that_the_page_does_not_draw_are_kept_as_files_and_named_once(drop_in, tmp_path, capfd):
    (tmp_path / "m.pdb").write_text("ATOM")
    box = drop_in.box3d(
        center=(0, 0, 0), size=(2, 2, 2), orientation=(1, 0, 0, 0), color=(1, 2, 3), label="b", score=0.5
    )
    with drop_in.init() as run:
        run.log({"o": drop_in.Object3D(np.zeros((2, 3))), "c": drop_in.Object3D.from_point_cloud([[0, 0, 0]], [box])})
        run.log(
            {"m": drop_in.Molecule("m.pdb", caption="c"), "f": drop_in.Object3D(io.StringIO("v 0"), file_type="obj")}
        )
        run.log({"j": drop_in.JoinedTable(None, None, "k")})
    found = {each.name: each for each in media_of()}
    assert {name: (each.type, each.format) for name, each in found.items()} == {
        "c": ("file", "json"),
        "f": ("file", "obj"),
        "m": ("file", "pdb"),
        "o": ("file", "json"),
    }
    assert json.loads(found["c"].read())["boxes"][0]["corners"][0] == [-1, -1, -1]
    said = capfd.readouterr().err
    assert (said.count("A wandb.Object3D is not drawn"), said.count("wandb.JoinedTable")) == (1, 1)


@pytest.mark.parametrize("axis", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 2, -2)])
def test_box_is_turned_by_its_quaternion(axis, drop_in):
    axis = np.array(axis) / np.linalg.norm(axis)
    angle = 0.7
    quaternion = [np.cos(angle / 2), *np.sin(angle / 2) * axis]
    box = drop_in.box3d(center=(1, 2, 3), size=(2, 4, 6), orientation=quaternion, color=(1, 2, 3))
    corners = np.array([[x, y, z] for x in (-1, 1) for y in (-2, 2) for z in (-3, 3)])
    along = np.outer(corners @ axis, axis) * (1 - np.cos(angle))
    turned = corners * np.cos(angle) + np.cross(axis, corners) * np.sin(angle) + along  # Rodrigues' formula
    assert np.allclose(box["corners"], turned + np.array([1, 2, 3]))


def test_trace_is_recorded_as_text_and_tables_in_files_are_named(drop_in, capfd):
    trace = drop_in.data_types.WBTraceTree({"name": "chain"}, model_dict={"kind": "agent"})
    with drop_in.init() as run:
        run.log({"trace": trace, "parts": drop_in.data_types.PartitionedTable(parts_path="parts")})
    [found] = media_of("trace")
    assert json.loads(found.text()) == {"root_span": {"name": "chain"}, "model": {"kind": "agent"}}
    assert "Of a wandb.PartitionedTable nothing is recorded: log its parts." in capfd.readouterr().err


def test_other_values_of_hookline_can_be_logged_beside_them(drop_in):
    with drop_in.init() as run:
        run.log(
            {
                "t": hl.Text("a text"),
                "l": [hl.Text("a"), hl.Text("b")],
                "g": drop_in.Graph(),
                "k": drop_in.Bokeh.__name__,
            }
        )
    assert sorted({each.name for each in media_of()}) == ["g", "l", "t"]


def test_value_that_mixes_media_and_others_is_refused(drop_in):
    run = drop_in.init()
    with pytest.raises(TypeError, match="Object of type Html is not JSON serializable"):
        run.log({"l": [drop_in.Html("x"), 1]})
    with pytest.raises(ValueError, match="We do not support DataFrames"):
        run.log({"d": pytest.importorskip("pandas").DataFrame({"a": [1]})})


# Tables and charts


def test_table_from_arrays_frames_and_rows(drop_in):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": [1, 2], "b": ["x", None]})
    tables = [
        drop_in.Table(dataframe=frame),
        drop_in.Table(data=frame, columns=["ignored"]),
        drop_in.Table(columns=["a", "b"], rows=[[1, "x"], [2, None]]),
    ]
    assert [(table.columns, [int(row[0]) for row in table.data], table.data[0][1]) for table in tables] == [
        (["a", "b"], [1, 2], "x")
    ] * 3
    assert drop_in.Table(columns=["a", "b"], data=np.eye(2)).get_column("a", convert_to="numpy").tolist() == [1, 0]
    assert drop_in.Table().columns == ["Input", "Output", "Expected"]


def test_table_columns_keep_their_types_unless_mixed_types_are_allowed(drop_in):
    table = drop_in.Table(columns=["a", "b"], dtype=[int, str], optional=[True, False])
    table.add_row(None, "x")
    for row in ((True, "x"), ("1", "x"), (1, None), (1, 2)):
        with pytest.raises(TypeError, match="incompatible types"):
            table.add_data(*row)
    mixed = drop_in.Table(columns=["a"], data=[[1], ["x"], [None]], allow_mixed_types=True)
    assert (table.data, mixed.get_column("a")) == ([[None, "x"]], [1, "x", None])


def test_table_is_changed_and_read(drop_in):
    table = drop_in.Table(columns=["a"], data=[[1], [2]])
    table.add_column("b", ["x", "y"])
    table.add_computed_columns(lambda index, row: {"c": row["a"] * 10 + index})
    table.set_pk("a")
    assert table.cast("a", float) == "number"
    with pytest.raises(TypeError):
        table.cast("b", int)
    assert [*table.iterrows()] == [(0, [1, "x", 10]), (1, [2, "y", 21])]
    assert (table.get_index(), table.index_ref(1), table.get_dataframe()["c"].tolist()) == ([0, 1], 1, [10, 21])
    assert table == drop_in.Table(columns=["a", "b", "c"], data=[[1, "x", 10], [2, "y", 21]])


@pytest.mark.parametrize(
    ("mode", "recorded"),
    [
        ("IMMUTABLE", {0: [1]}),
        ("MUTABLE", {0: [1], 1: [1, 2]}),
        ("INCREMENTAL", {0: [1], 1: [2]}),
    ],
)
def test_table_that_is_logged_again_records_what_its_mode_says(drop_in, mode, recorded):
    table = drop_in.Table(columns=["x"], data=[[1]], log_mode=mode)
    with drop_in.init() as run:
        run.log({"t": table})
        table.add_data(2)
        run.log({"t": table})
        run.log({"t": table})
    info = hl.runs("runs").latest()
    found = {step: [row["x"] for row in info.table("t", step=step).rows()] for step in range(3)}
    assert ({step: own for step, own in found.items() if own}, table.has_been_logged()) == (recorded, True)
    assert last_run().summary["t"]["ncols"] == 1


def test_table_under_two_names_and_with_media_in_its_cells(drop_in):
    table = drop_in.Table(columns=["i", "l", "d"], log_mode="IMMUTABLE")
    table.add_data(drop_in.Image(np.zeros((2, 2))), [1, 2], datetime(2026, 1, 1))
    with drop_in.init() as run:
        run.log({"a": table, "b": table})
    info = hl.runs("runs").latest()
    [row] = info.table("b").rows()
    assert (info.table("a").total(), json.loads(row["l"]), row["d"]) == (1, [1, 2], "2026-01-01T00:00:00")
    assert json.loads(row["i"])["media"]["type"] == "image"


def test_eval_table_has_the_columns_of_its_parts(drop_in):
    table = drop_in.EvalTable(input_columns=["q"], output_columns=["a"], score_columns=["s"])
    table.add_data("1 + 1", "2", 1.0)
    assert table.columns == ["q", "a", "s"]


def chart(kind, wandb):
    table = wandb.Table(columns=["x", "y", "c"], data=[[1, 2, "a"], [3, 4, "b"]])
    return {
        "line": lambda: wandb.plot.line(table, "x", "y", stroke="c", title="T", split_table=False),
        "scatter": lambda: wandb.plot.scatter(table, x="x", y="y", title="T", split_table=False),
        "bar": lambda: wandb.plot.bar(table, label="c", value="y", title="T", split_table=False),
        "histogram": lambda: wandb.plot.histogram(table, value="x", title="T", split_table=False),
        "line_series": lambda: wandb.plot.line_series(
            [0, 1], [[1, 2], [3, 4]], keys=["a", "b"], title="T", xname="n", split_table=False
        ),
    }[kind]()


@pytest.mark.parametrize(
    ("kind", "types", "first"),
    [
        ("line", ["scatter", "scatter"], {"x": [1], "y": [2], "mode": "lines", "name": "a"}),
        ("scatter", ["scatter"], {"x": [1, 3], "y": [2, 4], "mode": "markers"}),
        ("bar", ["bar"], {"x": ["a", "b"], "y": [2, 4]}),
        ("histogram", ["histogram"], {"x": [1, 3]}),
        ("line_series", ["scatter", "scatter"], {"x": [0, 1], "y": [1, 2], "name": "a"}),
    ],
)
def test_chart_is_recorded_as_a_figure_with_its_table(drop_in, kind, types, first):
    with drop_in.init() as run:
        run.log({"chart": chart(kind, drop_in)})
    [found] = media_of("chart")
    figure = json.loads(found.text())
    assert ([trace["type"] for trace in figure["data"]], figure["layout"]["title"]["text"]) == (types, "T")
    assert first.items() <= figure["data"][0].items()
    assert hl.runs("runs").latest().table("chart_table").total() > 0


def test_chart_of_ones_own_records_its_table(drop_in, capfd):
    table = drop_in.Table(columns=["x"], data=[[1]])
    made = drop_in.plot_table("me/mine", table, {"x": "x"}, {"title": "T"}, split_table=True)
    with drop_in.init() as run:
        run.log({"chart": made, "old": drop_in.visualize("me/mine", value=drop_in.Table(columns=["x"], data=[[1]]))})
    assert sorted(rows()[0]) == ["Custom Chart Tables/chart_table", "_step", "old_table"]
    assert "The chart 'me/mine' is not drawn: its table is recorded." in capfd.readouterr().err
    with pytest.raises(drop_in.Error, match="Expected `data_table` to be `wandb.Table`"):
        drop_in.plot_table("x", [1], {})
    with pytest.raises(drop_in.Error, match="Expected `value`"):
        drop_in.visualize("x", 1)


TRUE = [0, 1, 1, 0, 2, 2, 1]
SCORES = [
    [0.8, 0.1, 0.1],
    [0.2, 0.7, 0.1],
    [0.4, 0.35, 0.25],
    [0.5, 0.25, 0.25],
    [0.1, 0.2, 0.7],
    [0.3, 0.3, 0.4],
    [0.2, 0.6, 0.2],
]


@pytest.mark.parametrize("kind", ["roc_curve", "pr_curve"])
@pytest.mark.parametrize("options", [{}, {"labels": ["a", "b", "c"], "classes_to_plot": [0, 2]}])
def test_curve_has_the_points_of_wandb(drop_in, kind, options):
    theirs = pytest.importorskip("wandb")
    found = getattr(drop_in.plot, kind)(TRUE, SCORES, title="T", split_table=False, **options).table
    expected = getattr(theirs.plot, kind)(TRUE, SCORES, **options).table
    plain = [[cell.item() if hasattr(cell, "item") else cell for cell in row] for row in expected.data]
    assert (found.columns, found.data) == (expected.columns, plain)


def test_precision_recall_curve_has_as_many_points_as_are_asked_for(drop_in):
    assert len(drop_in.plot.pr_curve(y_true=TRUE, y_probas=SCORES, interp_size=5).table.data) == 15


def test_confusion_matrix_counts_classes(drop_in):
    plot = drop_in.plot.confusion_matrix
    by_probability = plot(probs=SCORES, y_true=TRUE, title="T", split_table=False).table
    by_class = plot(y_true=TRUE, preds=[int(np.argmax(each)) for each in SCORES]).table
    assert by_probability.data == by_class.data
    assert by_class.data[0] == ["Class_1", "Class_1", 2.0]
    for arguments, message in (
        ({"probs": SCORES, "preds": TRUE, "y_true": TRUE}, "Only one of"),
        ({"y_true": [1], "preds": [1, 2]}, "must be equal"),
        ({"y_true": [0, 1], "preds": [0, 1], "class_names": ["a"]}, "exceeds the number of class names"),
    ):
        with pytest.raises(ValueError, match=message):
            plot(**arguments)


def test_line_series_with_other_lengths_is_refused(drop_in):
    with pytest.raises(ValueError, match="must match y-series"):
        drop_in.plot.line_series([[0, 1]], [[1, 2], [3, 4]])
    with pytest.raises(ValueError, match="Number of keys"):
        drop_in.plot.line_series([0, 1], [[1, 2]], keys=["a", "b"])


def test_watch_records_gradients_and_parameters_every_so_many_passes(drop_in):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 1)
    run = drop_in.init()
    run.watch(models=[model], criterion=None, log="all", log_freq=2, idx=None, log_graph=True)
    for step in range(4):
        model(torch.ones(1, 2)).sum().backward()
        run.log({"loss": step})
    run.unwatch(models=model)
    model(torch.ones(1, 2)).sum().backward()
    run.log({"loss": 9})
    run.finish()
    names = {f"{kind}/{part}" for kind in ("gradients", "parameters") for part in ("weight", "bias")}
    assert [sorted(set(row) & names) for row in rows()] == [[], sorted(names), [], sorted(names), []]
    assert "Linear" in media_of("graph_0")[0].text()


@pytest.mark.parametrize(("models", "log", "error"), [(3, "all", TypeError), (None, "everything", ValueError)])
def test_watch_of_something_else_is_refused(drop_in, models, log, error):
    pytest.importorskip("torch")
    run = drop_in.init()
    with pytest.raises(error):
        run.watch(models, log=log)
