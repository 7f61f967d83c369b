"""What tests ask a page about what it shows."""


def panel(page, metric):
    """The chart of a metric."""
    return page.locator(f'.panel[data-metric="{metric}"]')


def is_drawn(page, metric):
    """Whether anything coloured is on the canvas of a chart."""
    return (
        panel(page, metric)
        .locator("canvas")
        .evaluate(
            """canvas => {
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 0; i < data.length; i += 4)
                if (data[i + 3] > 200 && Math.abs(data[i] - data[i + 2]) > 60) return true;
            return false;
        }"""
        )
    )


def has_sideways_scroll(page):
    return page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")


def wait_until(page, condition):
    """Look again with each picture that the browser draws; what the page's policy forbids to evaluate is not needed."""
    look = f"const look = () => (({condition}) ? done() : requestAnimationFrame(look)); look();"
    page.evaluate(f"() => new Promise((done) => {{ {look} }})")
