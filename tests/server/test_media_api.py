"""The interface for media, tables and blobs: pages of them, and that nothing recorded elsewhere harms the viewer."""

import hashlib
import json
import urllib.parse
import urllib.request

import pytest
from page_runs import append, begun, ended, make_run
from sending import READ, WRITE

from hookline._record.blobs import BlobStore, blob_directory
from hookline._record.records import Media, TableRows
from hookline.server.root_tokens import Tokens

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 40
PAGE = b"<!doctype html><script>parent.hacked = 1</script>"


def recorded(root, *records, run_id="r0", contents=(PNG,)):
    """A finished run with records, and blobs in the root; returns the digests."""
    directory = make_run(root, run_id)
    append(directory, begun(), *records, ended(9))
    return write_blobs(directory, contents)


def write_blobs(directory, contents):
    with BlobStore(blob_directory(directory)).writing() as batch:
        infos = [batch.add(content) for content in contents]
        batch.commit()
    return [info.digest for info in infos]


def digest_of(content):
    return hashlib.sha256(content).hexdigest()


def medium(content=PNG, kind="image", suffix="png", step=1, **more):
    described = {"type": kind, "blob": digest_of(content), "size": len(content), "format": suffix}
    return Media(step=step, name=more.pop("name", "m"), **described, **more)


def get(server, path, headers=None, **parameters):
    query = urllib.parse.urlencode(parameters, doseq=True)
    request = urllib.request.Request(f"{server.url}api/{path}?{query}", headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def answer(server, path, **parameters):
    status, _, body = get(server, path, **parameters)
    assert status == 200, body
    return json.loads(body)


def blob(server, content, run="p/r0", headers=None, **parameters):
    return get(server, "blob", headers, run=run, digest=digest_of(content), **parameters)


def test_media_are_listed_by_name_and_shown_at_a_step(root, serve):
    media = [medium(step=step, index=index, caption=f"{step}.{index}") for step in (5, 10) for index in range(3)]
    recorded(root, *media, Media(step=7, name="h", type="histogram", data={"counts": [1], "low": 0, "high": 1}))
    recorded(root, medium(step=8), run_id="r1")
    server, both = serve(root), {"run": ["p/r0", "p/r1"]}
    names = answer(server, "media/names", **both)["names"]
    assert [(each["name"], each["type"], each["items"], each["runs"]) for each in names] == [
        ("h", "histogram", 1, 1),
        ("m", "image", 7, 2),
    ]
    assert answer(server, "media/steps", **both)["steps"] == [5, 8, 10]
    page = answer(server, "media", **both, name="m", type="image", step=9, limit=2)
    assert page["totals"] == {"p/r0": 3, "p/r1": 1}
    shown = [(each["run"], each["step"], each["caption"]) for each in page["media"]]
    assert shown == [("p/r0", 5, "5.0"), ("p/r0", 5, "5.1"), ("p/r1", 8, "")]
    later = answer(server, "media", run="p/r0", name="m", type="image", limit=2, offset=2)["media"]
    assert [each["caption"] for each in later] == ["10.2"]


def test_histograms_are_thinned_to_the_last_step_and_merged_without_losing_counts(root, serve):
    data = {"counts": [1] * 1000, "low": 0.0, "high": 10.0, "count": 1000}
    hists = [Media(step=step, name="h", type="histogram", data=data) for step in range(1, 301)]
    bad = [
        {},
        {"counts": ["x"], "low": 0, "high": 1},
        {"counts": [1], "low": 1, "high": 0},
        {"counts": [1e999], "low": 0},
    ]
    recorded(root, *hists, *(Media(step=301, name="bad", type="histogram", data=each) for each in bad))
    server = serve(root)
    found = answer(server, "media/histograms", run="p/r0", name="h", max_steps=50)["histograms"]
    assert (len(found), found[-1]["step"]) == (50, 300)
    assert (len(found[0]["counts"]), sum(found[0]["counts"]), len(found[0]["edges"])) == (125, 1000, 126)
    assert answer(server, "media/histograms", run="p/r0", name="bad")["histograms"] == []


def table_rows(rows, columns, start=0, step=1, table="t"):
    return TableRows(step=step, name="t", table=table, columns=columns, rows=rows, start=start)


def test_table_page_is_sorted_filtered_and_bounded(root, serve):
    rows = [[number, "even" if number % 2 == 0 else "odd", "x" * 5000] for number in range(60)]
    recorded(root, table_rows(rows, ["n", "kind", "long"]))
    server, asked = serve(root), {"run": "p/r0", "name": "t"}
    page = answer(server, "table", **asked, sort="n", order="down", text="EVEN", limit=2, offset=1)
    assert (page["columns"], page["total"]) == (["n", "kind", "long"], 30)
    assert [row["cells"][:2] for row in page["rows"]] == [[56, "even"], [54, "even"]]
    assert page["rows"][0]["cells"][2] == {"text": "x" * 2000, "characters": 5000}
    few = answer(server, "table", **asked, column="n", comparison="<", value="3")
    assert [row["cells"][0] for row in few["rows"]] == [0, 1, 2]
    [info] = answer(server, "tables", run="p/r0", name="t")["tables"]
    assert (info["rows"], info["table"], info["step"]) == (60, "t", 1)


def test_blob_is_sent_only_for_a_run_that_refers_to_it(root, serve):
    recorded(root, medium(), contents=[PNG, b"secret"])
    recorded(root, run_id="other", contents=())
    server = serve(root)
    status, headers, body = blob(server, PNG)
    assert (status, headers["Content-Type"], body) == (200, "image/png", PNG)
    assert blob(server, PNG, run="p/other")[0] == 404
    assert blob(server, b"secret")[0] == 404
    for digest in ("../../../etc/passwd", "0" * 63, "A" * 64, "%2e%2e/x", digest_of(PNG) + "/.."):
        assert get(server, "blob", run="p/r0", digest=digest)[0] == 400


def test_blob_of_a_mask_and_of_a_cell_belong_to_the_run(root, serve):
    mask, cell = PNG + b"mask", PNG + b"cell"
    parts = {"parts": {"masks/m": {"blob": digest_of(mask), "size": len(mask)}}}
    in_cell = {"media": {"type": "image", "blob": digest_of(cell), "size": len(cell), "format": "png"}}
    recorded(root, medium(data=parts), table_rows([[in_cell]], ["c"]), contents=[PNG, mask, cell])
    server = serve(root)
    assert [blob(server, each)[0] for each in (PNG, mask, cell)] == [200] * 3


@pytest.mark.parametrize(
    ("content", "kind", "suffix", "expected"),
    [
        (PNG, "image", "png", "image/png"),
        (b"RIFF\0\0\0\0WEBPx", "video", "webp", "image/webp"),
        (b"RIFF\0\0\0\0WAVEx", "audio", "wav", "audio/wav"),
        (b"\0\0\0\x18ftypmp42", "video", "mp4", "video/mp4"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image", "svg", "image/svg+xml"),
        (b"# a", "markdown", "md", "text/plain; charset=utf-8"),
        (PAGE, "html", "html", "text/html; charset=utf-8"),
        (PAGE, "image", "png", "application/octet-stream"),  # not what it says it is
        (PAGE, "file", "html", "application/octet-stream"),
        (PAGE, "image", "html", "application/octet-stream"),
        (PAGE, "html", "exe", "application/octet-stream"),
        (b"\0binary", "text", "txt", "application/octet-stream"),
        (b"console.log(1)", "file", "js", "application/octet-stream"),
        (b"%PDF-1.4", "file", "pdf", "application/octet-stream"),
    ],
)
def test_blob_has_a_type_of_the_short_list_that_its_bytes_agree_with(root, serve, content, kind, suffix, expected):
    recorded(root, medium(content, kind, suffix, data={"file": '../"a\r\nb.png'}), contents=[content])
    status, headers, body = blob(serve(root), content)
    assert (status, headers["Content-Type"], body) == (200, expected, content)
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")
    assert "frame-ancestors 'self'" in headers["Content-Security-Policy"]
    way = "attachment" if expected == "application/octet-stream" else "inline"
    assert headers["Content-Disposition"] == f'{way}; filename="a_b.png"'


@pytest.mark.parametrize(
    ("given", "status", "expected", "reported"),
    [
        ("bytes=2-5", 206, slice(2, 6), "bytes 2-5/48"),
        ("bytes=40-", 206, slice(40, None), "bytes 40-47/48"),
        ("bytes=-8", 206, slice(40, None), "bytes 40-47/48"),
        ("bytes=40-999999999999999999", 206, slice(40, None), "bytes 40-47/48"),
        ("bytes=48-", 416, None, "bytes */48"),
        ("bytes=5-2", 416, None, "bytes */48"),
        ("bytes=0-", 206, slice(None), "bytes 0-47/48"),
        ("bytes=0-1,4-5", 200, slice(None), None),
        ("lines=1-2", 200, slice(None), None),
    ],
)
def test_blob_is_sent_in_parts(root, serve, given, status, expected, reported):
    recorded(root, medium())
    found, headers, body = blob(serve(root), PNG, headers={"Range": given})
    assert (found, headers["Content-Range"]) == (status, reported)
    assert expected is None or body == PNG[expected]


def test_blob_is_kept_by_browsers(root, serve):
    recorded(root, medium())
    server = serve(root)
    headers = blob(server, PNG)[1]
    assert "immutable" in headers["Cache-Control"]
    assert "private" in headers["Cache-Control"]
    assert blob(server, PNG, headers={"If-None-Match": headers["ETag"]})[0] == 304
    changed = {"Range": "bytes=0-3", "If-Range": '"other"'}
    assert blob(server, PNG, headers=changed)[2] == PNG


def test_damaged_missing_and_linked_blobs_are_not_sent(root, serve, tmp_path):
    contents = [PNG + bytes([number]) for number in range(3)]
    recorded(root, *map(medium, contents), contents=contents)
    damaged, missing, linked = (root / ".blobs" / digest_of(each)[:2] / digest_of(each) for each in contents)
    damaged.write_bytes(b"other")
    missing.unlink()
    linked.unlink()
    (tmp_path / "secret").write_bytes(contents[2])
    linked.symlink_to(tmp_path / "secret")
    server = serve(root)
    assert [blob(server, each)[0] for each in contents] == [404] * 3


def test_blobs_need_the_read_token(root, serve):
    recorded(root, medium())
    server = serve(root, tokens=Tokens(write=WRITE, read=READ))
    assert blob(server, PNG)[0] == 401
    assert blob(server, PNG, headers={"Authorization": f"Bearer {READ}"})[2] == PNG


def test_very_large_data_is_left_out_of_a_page(root, serve):
    huge = {"plot": "confusion_matrix", "counts": [[1234567] * 700] * 700}
    recorded(root, *(Media(step=1, name="p", type="plot", index=index, data=huge) for index in range(3)))
    page = answer(serve(root), "media", run="p/r0", name="p", type="plot")
    assert [each["cut"] for each in page["media"]] == [False, False, True]
