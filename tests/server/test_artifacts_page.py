"""Artifacts over HTTP and in the page, over versions that were really saved."""

import urllib.error
import urllib.parse
import urllib.request

import msgspec
import pytest

pytest.importorskip("playwright.sync_api", reason="browser tests need playwright")

from page_looks import has_sideways_scroll
from page_runs import HOSTILE
from playwright.sync_api import expect

import hookline as hl


@pytest.fixture
def saved(root, tmp_path):
    """Two versions of a model, a reference, and the runs that saved and used them."""
    files = tmp_path / "files"
    files.mkdir()
    for text in ("one", "two"):
        (files / "weights.html").write_text(f"<script>window.hacked = '{text}'</script>")
        with hl.run(f"train-{text}", root=root, project="p", summary=False) as run:
            metadata = {"accuracy": 0.5, HOSTILE: HOSTILE}
            run.save_artifact("model", files, kind="model", aliases=[text], metadata=metadata)
    with hl.run("evaluate", root=root, project="p", summary=False) as user:
        user.use_artifact("model:one")
        user.save_artifact("data", {"rows.csv": "nosuchstore://bucket/rows.csv"}, kind="dataset")
    return run, user


def get(server, path, **query):
    address = f"{server.url}api/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address, timeout=30) as response:
        return response.headers, response.read()


def status_of(server, path, **query):
    with pytest.raises(urllib.error.HTTPError) as raised:
        get(server, path, **query)
    with raised.value as answer:
        return answer.code


def test_api_lists_artifacts_and_describes_a_version(root, serve, saved):
    server = serve(root)
    listed = msgspec.json.decode(get(server, "artifacts")[1])["artifacts"]
    assert [(row["id"], row["versions"], row["latest"]["kind"]) for row in listed] == [
        ("p/data", 1, "dataset"),
        ("p/model", 2, "model"),
    ]
    found = msgspec.json.decode(get(server, "artifact", name="p/model:one")[1])
    assert (found["id"], found["version"]["version"], found["version"]["aliases"]) == ("p/model", "v0", ["one"])
    assert [row["version"] for row in found["versions"]] == ["v1", "v0"]
    assert [(each["role"], each["exists"]) for each in found["runs"]] == [("saved", True), ("used", True)]
    assert found["runs"][1]["run"] == f"p/{saved[1].dir.name}"
    assert [file["path"] for file in found["files"]] == ["weights.html"]
    assert status_of(server, "artifact", name="p/model:v7") == 404
    assert status_of(server, "artifact", name="../model") == 400


def test_download_is_an_attachment_that_no_browser_shows(root, serve, saved):
    server = serve(root)
    headers, content = get(server, "artifact/file", name="p/model:one", file="weights.html")
    assert content == b"<script>window.hacked = 'one'</script>"
    assert headers["Content-Type"] == "application/octet-stream"
    assert headers["Content-Disposition"] == 'attachment; filename="weights.html"'
    assert headers["X-Content-Type-Options"] == "nosniff"
    for wrong in ({"file": "../weights.html"}, {"file": "x"}, {"name": "p/data", "file": "rows.csv"}):
        assert status_of(server, "artifact/file", **{"name": "p/model", **wrong}) == 404
    hl.artifact("p/model", root=root).path().write_text("damaged")
    assert status_of(server, "artifact/file", name="p/model", file="weights.html") == 404


def test_damaged_manifest_is_listed_as_damaged(root, serve, saved):
    path = root / ".artifacts" / "p" / "model" / "v1.json"
    path.write_text("{}")
    server = serve(root)
    rows = msgspec.json.decode(get(server, "artifacts")[1])["artifacts"]
    assert "is damaged" in rows[1]["latest"]["problem"]
    assert msgspec.json.decode(get(server, "artifact", name="p/model:one")[1])["version"]["problem"] == ""


def test_artifacts_view_shows_versions_files_and_lineage(root, show, saved):
    page = show("artifacts?artifact=p/model:one")
    expect(page.locator("tr[data-artifact]")).to_have_count(2)
    expect(page.locator('tr[data-artifact="p/model"]')).to_contain_text("one v0")
    expect(page.locator(".artifact h2")).to_contain_text("p/model:v0")
    expect(page.locator('[data-role="saved"] a')).to_have_text("train-one")
    expect(page.locator('[data-role="used"] a')).to_have_text("evaluate")
    expect(page.locator(".artifact")).to_contain_text("<script>")
    expect(page.get_by_role("columnheader", name="digest or location")).to_be_visible()
    assert page.evaluate("window.hacked") is None
    with page.expect_download() as download:
        page.locator('tr[data-file="weights.html"] a').click()
    assert "window.hacked = 'one'" in download.value.path().read_text()
    page.locator('tr[data-version="v1"] th a').click()
    expect(page.locator(".artifact h2")).to_contain_text("p/model:v1")
    expect(page.locator('[data-role="used"]')).to_contain_text("not used by a run yet")
    page.locator('[data-role="saved"] a').click()
    expect(page).to_have_url(f"{page.url.partition('#')[0]}#/run?run=p/{saved[0].dir.name}")


def test_artifacts_view_is_usable_narrow_and_without_artifacts(root, show, page, saved):
    page.set_viewport_size({"width": 360, "height": 740})
    show("artifacts?artifact=p/model")
    expect(page.locator(".lineage-version")).to_be_visible()
    assert not has_sideways_scroll(page)
    expect(page.locator("#tabs [aria-current]")).to_be_in_viewport()


def test_artifacts_view_of_an_empty_root_says_how_to_save_one(root, show):
    with hl.run("train", root=root, summary=False):
        pass
    page = show("artifacts")
    expect(page.locator("#view")).to_contain_text("run.save_artifact(")
    expect(page.locator(".lineage-version")).to_have_count(0)
