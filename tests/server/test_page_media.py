"""The media view in a real browser: every kind, by step, side by side, live; and recorded content reaches nothing."""

import hashlib
import re

import numpy as np
import pytest
from page_looks import has_sideways_scroll
from page_runs import HOSTILE, append, begun, ended, live_run, make_run

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")
from playwright.sync_api import expect

import hookline as hl
from hookline._record.blobs import BlobStore, blob_directory
from hookline._record.records import Media, TableRows


def log_media(root, name="r0", shade=0):
    """A finished run with media of every kind at two steps, the first before the second."""
    with hl.run(name, root=root, project="p", summary=False) as run:
        rows = hl.Table(["word", "score", "picture"])
        for step in run.steps(2):
            picture = np.full((30, 40, 3), shade + 100 * step, np.uint8)
            boxes = [{"box": (5, 5, 20, 20), "label": "cat", "score": 0.5}]
            masks = {"truth": np.eye(30, 40, dtype=int)}
            run.log(
                pictures=[hl.Image(picture, caption=f"at {step + 1}", boxes=boxes, masks=masks), hl.Image(picture)],
                weights=hl.Histogram(np.arange(20.0) * (step + 1)),
                confusion=hl.plots.confusion_matrix([0, 1, 1], [0, 1, step], labels=["no", "yes"]),
                curve=hl.plots.roc([0, 1, 1, 0], [0.1, 0.8, 0.4, 0.5]),
                report=hl.Markdown(f"# Step {step + 1}\n\n**bold** [link](https://example.com)\n\n| a |\n|---|\n| 1 |"),
                note=hl.Text("plain <b>text</b>"),
                page=hl.Html("<h1>shown</h1>"),
                sound=hl.Audio(np.zeros(800), rate=8000),
                figure=hl.Figure({"data": [{"type": "scatter", "y": [1, 3, 2]}, {"type": "pie", "values": [1]}]}),
            )
            rows.extend([[f"w{number}", number / 7, hl.Image(picture)] for number in range(30)])
        run.log(words=rows)


def panel(page, name):
    found = page.locator(f".media-panel[data-name={name}]")
    found.scroll_into_view_if_needed()
    expect(found).to_have_attribute("data-loaded", "2")
    return found


def test_media_view_shows_every_kind(root, show):
    log_media(root)
    page = show("media")
    pictures = panel(page, "pictures")
    expect(pictures.locator("figcaption").first).to_contain_text("at 2")
    assert pictures.locator("img").first.evaluate("e => e.decode().then(() => e.naturalWidth)") == 40
    expect(pictures.locator(".box")).to_have_text(["cat 0.50"])
    expect(pictures.locator("canvas.mask")).to_have_count(1)
    expect(panel(page, "confusion").locator("td.hit")).to_have_text(["1", "2"])
    expect(panel(page, "curve").locator("svg .curve")).to_have_count(2)
    expect(panel(page, "report").locator(".markdown strong")).to_have_text("bold")
    expect(panel(page, "report").locator("a[href^=http]")).to_have_text("link")
    expect(panel(page, "note").locator("pre")).to_have_text("plain <b>text</b>")
    expect(panel(page, "sound").locator("audio")).to_have_count(1)
    expect(panel(page, "figure").locator(".plotly")).to_contain_text("Not drawn here: pie")
    expect(panel(page, "page").frame_locator("iframe").locator("h1")).to_have_text("shown")


def test_aligned_columns_of_markdown_need_no_inline_style(root, show):
    with hl.run("r0", root=root, project="p", summary=False) as run:
        run.log(report=hl.Markdown("| class | IoU | note |\n|---|---:|:---:|\n| cat | 0.5 | odd |"))
    page = show("media")  # its console has no error: the fixture checks
    for text, alignment in (("cat", "start"), ("0.5", "right"), ("odd", "center")):
        expect(page.get_by_role("cell", name=text)).to_have_css("text-align", alignment)


def test_words_in_formulas_have_the_font_of_formulas(root, show):
    with hl.run("r0", root=root, project="p", summary=False) as run:
        run.log(report=hl.Markdown(r"The area is $30 \text{ cm}^2$."))
    page = show("media")
    expect(page.locator(".katex .mord.text").first).to_have_css("font-family", re.compile("KaTeX_Main"))


def test_step_slider_and_toggles_change_what_is_shown(root, show):
    log_media(root)
    page = show("media?kind=image")
    pictures = panel(page, "pictures")
    page.keyboard.press("k")
    expect(pictures.locator("figcaption").first).to_contain_text("at 1")
    expect(page.locator(".step-slider output")).to_have_text("1")
    expect(page).to_have_url(re.compile("step=1$"))
    pictures.get_by_label("boxes").uncheck()
    expect(pictures.locator(".box")).to_have_count(0)
    pictures.get_by_label("truth").uncheck()
    expect(pictures.locator("canvas.mask")).to_have_count(0)
    page.get_by_label("Next step").click()
    expect(pictures.locator("figcaption").first).to_contain_text("at 2")
    pictures.locator(".frame").first.click()
    expect(page.locator("dialog.lightbox img")).to_be_visible()


def test_runs_are_shown_side_by_side(root, show):
    log_media(root, "one")
    log_media(root, "two", shade=50)
    ids = "&".join(f"run={info.id}" for info in hl.runs(root))
    page = show(f"media?{ids}")
    columns = panel(page, "pictures").locator(".media-run")
    expect(columns.locator("h4 > span:first-of-type")).to_have_text(["two", "one"])
    first, second = columns.evaluate_all("all => all.map((column) => column.getBoundingClientRect().y)")
    assert first == second
    expect(panel(page, "weights").locator("canvas")).to_have_count(2)


def test_histograms_are_drawn_as_ridges_and_as_a_heat_map(root, show):
    log_media(root)
    weights = panel(show("media?kind=histogram"), "weights")
    for look, name in (("ridge", "ridges"), ("heat", "heat map")):
        weights.get_by_role("button", name=name).click()
        chart = weights.locator(f".histogram-chart[data-look={look}]")
        expect(chart.locator(".histogram-note")).to_contain_text("step 2 · 20 values")
        expect(chart.locator("canvas")).to_have_attribute("height", re.compile(r"\d+"))  # drawn once it has a size
        painted = "e => e.getContext('2d').getImageData(0, 0, e.width, e.height).data.some((v, i) => i % 4 === 3 && v)"
        assert chart.locator("canvas").evaluate(painted)


def test_histograms_are_labelled_with_recorded_steps_and_round_values(root, show):
    data = {"counts": [1, 2], "low": 0.03, "high": 0.96}
    hists = [Media(step=step, name="h", type="histogram", data=data) for step in (1, 6, 11, 16)]
    append(make_run(root), begun(16), *hists, ended(16))
    page = show("media?kind=histogram")
    drawn = page.locator(".media-panel[data-name=h]")
    page.evaluate("""() => {
        const draw = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
            window.labels.push(text);
            draw.call(this, text, ...place);
        };
    }""")
    steps, values = ["1", "6", "11", "16"], ["0.2", "0.4", "0.6", "0.8"]
    expected = {"heat": values + steps, "ridge": steps + values}
    for look, name in (("heat", "heat map"), ("ridge", "ridges"), ("heat", "heat map")):
        page.evaluate("window.labels = []")
        drawn.get_by_role("button", name=name).click()
        canvas = drawn.locator(f".histogram-chart[data-look={look}] canvas")
        expect(canvas).to_have_attribute("height", re.compile(r"\d+"))  # drawn
        assert page.evaluate("window.labels.slice(-8)") == expected[look]


def test_table_is_sorted_filtered_and_paged(root, show):
    log_media(root)
    words = panel(show("media?kind=table"), "words")
    expect(words.locator(".pager")).to_contain_text("1\u201320 of 60")
    words.get_by_role("button", name="score").click()
    words.get_by_role("button", name="score ↑").click()
    expect(words.locator("th[aria-sort=descending]")).to_have_text("score ↓")
    expect(words.locator("tbody tr").first).to_contain_text("w29")
    words.get_by_role("button", name="Next").click()
    expect(words.locator(".pager")).to_contain_text("21\u201340 of 60")
    words.get_by_label("Find in all cells").fill("W1")
    expect(words.locator(".pager")).to_contain_text("1\u201320 of 22")
    words.get_by_label("where").select_option("score")
    words.get_by_label("comparison").select_option("<")
    words.get_by_label("value").fill("1")
    expect(words.locator("tbody tr")).to_have_count(2)
    assert words.locator("tbody img").first.evaluate("e => e.decode().then(() => e.naturalWidth)") == 40


def test_new_media_of_a_live_run_appear_without_a_reload(root, show):
    directory = live_run(root)
    page = show("media")
    expect(page.locator(".empty")).to_contain_text("No media yet")
    data = {"plot": "roc", "series": [{"label": "a", "x": [0, 1], "y": [0, 1], "area": 0.5}]}
    append(directory, Media(step=1, name="roc", type="plot", data=data))
    expect(page.locator(".media-panel[data-name=roc] svg")).to_be_visible()
    append(directory, Media(step=2, name="roc", type="plot", data=data, caption="later"))
    expect(page.locator(".media-panel[data-name=roc] figcaption")).to_have_text("later")
    expect(page.locator(".step-slider output")).to_have_text("2 (latest)")


def hostile_run(root):
    directory = make_run(root)
    page = f"{HOSTILE}<img src=/api/runs><form action=/api/login><h1>inside</h1>".encode()
    image = (
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='parent.hacked = 1'><script>parent.hacked = 1</script></svg>"
    )
    markdown = f"{HOSTILE}\n\n[x](javascript:window.hacked=1) ![p](http://127.0.0.1:9/x.png)\n\n# {HOSTILE}".encode()
    with BlobStore(blob_directory(directory)).writing() as batch:
        for content in (page, image, markdown):
            batch.add(content)
        batch.commit()
    kinds = [(page, "html", "html"), (image, "image", "svg"), (markdown, "markdown", "md"), (page, "text", "txt")]
    media = [
        Media(
            step=1,
            name=f"{kind}{HOSTILE}",
            type=kind,
            blob=hashlib.sha256(content).hexdigest(),
            size=len(content),
            format=suffix,
            caption=HOSTILE,
        )
        for content, kind, suffix in kinds
    ]
    odd = [
        {"plot": HOSTILE},
        {"plot": "roc", "series": [{"label": HOSTILE, "x": [0, "x"], "y": [None]}]},
        {"plot": "confusion_matrix", "counts": [[1]], "labels": [HOSTILE]},
    ]
    media += [Media(step=1, name=f"plot{number}", type="plot", data=data) for number, data in enumerate(odd)]
    media += [Media(step=1, name="odd", type=HOSTILE, data={"file": HOSTILE}, blob="0" * 64)]
    rows = [[HOSTILE, {"media": {"type": "html", "blob": hashlib.sha256(page).hexdigest(), "format": "html"}}]]
    table = TableRows(step=1, name="table", table=HOSTILE, columns=[HOSTILE, "page"], rows=rows)
    append(directory, begun(), *media, table, ended(1))


def test_hostile_media_run_nothing_and_load_nothing(root, serve, browser):
    hostile_run(root)
    server = serve(root)
    # Its own page: what the browser refuses, it writes to the console.
    page, loaded = browser.new_page(), []
    page.on("response", lambda response: loaded.append(response.url))
    page.goto(f"{server.url}#/media")
    expect(page.locator(".media-panel")).to_have_count(9)
    for found in range(9):
        page.locator(".media-panel").nth(found).scroll_into_view_if_needed()
        expect(page.locator(".media-panel").nth(found)).to_have_attribute("data-loaded", "1")
    frame = page.locator(".media-panel[data-type=html] iframe")
    expect(frame.content_frame.locator("h1")).to_have_text("inside")
    assert (frame.get_attribute("sandbox"), frame.evaluate("e => e.contentDocument")) == ("", None)
    expect(page.locator(".media-panel[data-type=markdown]")).to_contain_text("<script>")
    assert page.locator("a[href^=javascript]").count() == 0
    assert page.evaluate("window.hacked ?? null") is None
    assert all(url.startswith(server.url) for url in loaded)
    assert not [url for url in loaded if url.endswith(("/api/login", "/api/x", "/api/runs"))]
    page.close()


def test_missing_file_is_reported_in_its_place(root, serve, browser):
    directory = make_run(root)
    lost = Media(step=1, name="lost", type="image", blob="a" * 64, size=10, format="png", caption="gone")
    append(directory, begun(), lost, ended(1))
    page = browser.new_page()
    page.goto(f"{serve(root).url}#/media")
    expect(page.locator(".unreadable")).to_contain_text("cannot be shown: it is missing, damaged")
    page.close()


def test_media_view_fits_a_narrow_screen(root, show, page):
    page.set_viewport_size({"width": 360, "height": 740})
    log_media(root)
    show("media")
    panel(page, "words")
    assert not has_sideways_scroll(page)
    page.set_viewport_size({"width": 1280, "height": 800})
