"""Helpers that read the content of a page in the browser."""

PATIENCE_MS = 30_000
"""How long a test waits for a drawing, for which there is no `expect`."""


def open_view(page, view):
    """Show another view, without loading the page again."""
    page.goto(f"{page.url.split('#')[0]}#/{view}")


def panel(page, metric):
    """The chart of a metric."""
    return page.locator(f'.panel[data-metric="{metric}"]')


def texts(page, selector):
    """The texts of all elements that a selector finds now."""
    return page.locator(selector).all_inner_texts()


def is_drawn(page, metric):
    """Whether anything coloured is on the canvas of a chart, at the latest after some time."""
    return panel(page, metric).evaluate(
        """(panel, patience) => {
            const isColoured = (canvas) => {
                if (!canvas?.width || !canvas.height) return false;
                const {width, height} = canvas;
                const copy = new OffscreenCanvas(width, height).getContext("2d", {willReadFrequently: true});
                copy.drawImage(canvas, 0, 0);
                const data = copy.getImageData(0, 0, width, height).data;
                for (let i = 0; i < data.length; i += 4) {
                    const [red, green, blue] = data.subarray(i, i + 3);
                    if (data[i + 3] > 200 && Math.max(red, green, blue) - Math.min(red, green, blue) > 30) return true;
                }
                return false;
            };
            return new Promise((done) => {
                const end = performance.now() + patience;
                const look = () => {
                    if (isColoured(panel.querySelector("canvas"))) done(true);
                    else if (performance.now() > end) done(false);
                    else requestAnimationFrame(look);
                };
                look();
            });
        }""",
        PATIENCE_MS,
    )


def has_sideways_scroll(page):
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def wait_until(page, condition):
    """Look again with each picture that the browser draws; what the page's policy forbids to evaluate is not needed."""
    look = f"const look = () => (({condition}) ? done() : requestAnimationFrame(look)); look();"
    page.evaluate(f"() => new Promise((done) => {{ {look} }})")
