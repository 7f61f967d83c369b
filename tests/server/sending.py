"""A sender for the tests of the server that receives runs."""

import http.client
import json
import urllib.parse

from hookline._record.records import Metrics, Status, encode
from hookline.server.root_tokens import Tokens

WRITE, READ = "write-token-of-a-test", "read-token-of-a-test"
TOKENS = Tokens(write=WRITE, read=READ)
ORIGIN, OTHER = "0" * 31 + "1", "0" * 31 + "2"
FILE = "main-0000-1-abc-000000.jsonl"


class Answer:
    """A response of a server."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def facts(self):
        """The status, and what is said besides words for people."""
        return self.status, {name: value for name, value in self.json.items() if name != "error"}


def ask(server, method, path, *, body=None, token=WRITE, headers=None, **query):
    """Send a request without normalizing its path."""
    address = urllib.parse.urlsplit(server if isinstance(server, str) else server.url)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
    given = {"Authorization": f"Bearer {token}"} if token else {}
    text = urllib.parse.urlencode(query)
    try:
        connection.request(method, f"{path}{'?' if text else ''}{text}", body, given | (headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def home(run="r0", project="p"):
    return f"/api/journals/{urllib.parse.quote(project, safe='')}/{urllib.parse.quote(run, safe='')}"


def claim(server, run="r0", project="p", *, origin=ORIGIN, facts=None, **more):
    body = json.dumps(facts if facts is not None else {"name": run, "project": project})
    return ask(server, "PUT", home(run, project), body=body, origin=origin, **more)


def put(server, lines, offset=0, *, run="r0", project="p", file=FILE, origin=ORIGIN, **more):
    path = f"{home(run, project)}/{file}"
    return ask(server, "PUT", path, body=lines, origin=origin, offset=offset, **more)


def beat(server, every_seconds=5.0, *, run="r0", project="p", origin=ORIGIN):
    body = json.dumps({"every_seconds": every_seconds})
    return ask(server, "POST", f"{home(run, project)}/beat", body=body, origin=origin)


def rows_of(count, first=1, time=1000.0):
    """Lines of a journal."""
    return b"".join(
        encode(Metrics(time=time + step, step=step, values={"loss": 1.0 / step})) + b"\n"
        for step in range(first, first + count)
    )


def status_of(word, time=1000.0, **data):
    return encode(Status(time=time, status=word, step=0, data=data)) + b"\n"


def tree(root):
    """All files below a directory with their content, except the index, which reading creates."""
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
        if ".hookline" not in path.parts
    }
