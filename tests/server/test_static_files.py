"""The page's own files: from memory, sent again only when they changed, and nothing but them."""

import os

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from hookline.server import static_files
from hookline.server.static_files import StaticFiles


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "page" / "js").mkdir(parents=True)
    (tmp_path / "page" / "js" / "main.js").write_text("one")
    (tmp_path / "secret").write_text("secret")
    return tmp_path / "page"


@pytest.fixture
def client(folder):
    with TestClient(Starlette(routes=[Route("/{path:path}", StaticFiles(folder).respond)])) as made:
        yield made


def test_file_is_sent_again_only_when_it_has_changed(client, folder):
    first = client.get("/js/main.js")
    assert (first.text, first.headers["Cache-Control"], "javascript" in first.headers["Content-Type"]) == (
        *("one", "no-cache"),
        True,
    )
    tag = {"If-None-Match": f'"other", W/{first.headers["ETag"]}'}
    assert [client.get("/js/main.js", headers=tag).status_code, client.head("/js/main.js").status_code] == [304, 200]
    (folder / "js" / "main.js").write_text("two")
    os.utime(folder / "js" / "main.js", (1, 1))
    assert client.get("/js/main.js", headers=tag).text == "two"


@pytest.mark.parametrize("path", ["/js", "/", "/js/../../secret", "/%2e%2e/secret", "/js/other.js", "//secret"])
def test_path_that_names_no_file_of_the_page_is_not_found(client, path):
    assert client.get(path).status_code == 404


def test_file_that_an_upgrade_brings_is_found(client, folder, monkeypatch):
    monkeypatch.setattr(static_files, "LIST_SECONDS", 0.0)
    (folder / "js" / "other.js").write_text("new")
    assert client.get("/js/other.js").text == "new"


def test_file_that_was_removed_is_not_found(client, folder):
    assert client.get("/js/main.js").status_code == 200
    (folder / "js" / "main.js").unlink()
    assert client.get("/js/main.js").status_code == 404
