"""Alerts of a server: rules over runs, deliveries that survive a kill, acknowledging and muting."""

import base64
import contextlib
import datetime
import ipaddress
import os
import shutil
import signal
import socketserver
import ssl
import subprocess
import sys
import textwrap
import threading
from functools import partial

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from loopback_server import Handler, LoopbackServer
from waiting import wait_until

import hookline as hl
from hookline.server.alert_delivery import Desktop, Email, Slack, Webhook
from hookline.server.alerts import AlertService, load_alerts
from hookline.store.alert_book import AlertBook, RaisedAlert

RULES = """
callbacks:
  - alert: {metric: loss, above: 0.8}
  - alert: {metric: loss, above: 0.4, in_a_row: 2, rearm: recovered}
    name: high
  - no_progress: {metric: loss, steps: 4}
"""
LOSSES = [0.5, 0.9, 0.3, 0.9, 0.9, 0.5, 0.3, 0.3]


class _Answers(Handler):
    def do_POST(self):
        owner = self.server.owner
        request = self.read_request()
        with owner.lock:
            status = owner.statuses.pop(0) if owner.statuses else 200
            if status == 200:
                owner.requests.append(request)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Receiver(LoopbackServer):
    """Keeps the requests that it accepts; answers the first ones with other statuses."""

    handler = _Answers

    def __init__(self, *statuses):
        self.statuses, self.requests = list(statuses), []
        super().__init__()

    @property
    def messages(self):
        return [request.body["message"] for request in self.requests]


class _SmtpSession(socketserver.StreamRequestHandler):
    server: "_MailServer"

    def handle(self):
        self.is_secure, self.user = isinstance(self.request, ssl.SSLSocket), ""
        self._say("220 ready")
        with contextlib.suppress(ssl.SSLError):  # of a client that does not trust the certificate
            self._converse()

    def finish(self):
        super().finish()
        self.connection.close()

    def _converse(self):
        while line := self.rfile.readline():
            verb, _, rest = line.decode().strip().partition(" ")
            if not self._answer(verb.upper(), rest):
                return

    def _answer(self, verb, rest):
        """Answer a command; returns whether the connection goes on."""
        if verb in ("EHLO", "HELO"):
            can = (
                ["localhost"] + ["STARTTLS"] * (not self.is_secure and self.server.context is not None) + ["AUTH PLAIN"]
            )
            self._say(*(f"250-{each}" for each in can), "250 ok")
        elif verb == "STARTTLS":
            self._say("220 go on")
            self.request = self.connection = self.server.context.wrap_socket(self.request, server_side=True)
            self.setup()
            self.is_secure = True
        elif verb == "AUTH":
            _, self.user, password = base64.b64decode(rest.partition(" ")[2]).decode().split("\0")
            self._say("235 welcome" if password == "s3cret" else "535 no")
        elif verb == "DATA":
            self._say("354 go on")
            text = b"".join(iter(self.rfile.readline, b".\r\n")).decode()
            self.server.mails.append((text, self.user, self.is_secure))
            self._say("250 kept")
        elif verb == "RCPT" and "nobody" in rest:
            self._say("550 no such user")
        else:
            self._say("221 bye" if verb == "QUIT" else "250 ok")
        return verb != "QUIT"

    def _say(self, *lines):
        self.wfile.write("".join(f"{line}\r\n" for line in lines).encode())


class _MailServer(socketserver.ThreadingTCPServer):
    """Keeps each mail with the user who sent it, and whether the connection was encrypted."""

    daemon_threads = True

    def __init__(self, context=None, *, is_tls=False):
        super().__init__(("127.0.0.1", 0), _SmtpSession)
        self.mails, self.context, self.is_tls = [], context, is_tls

    def get_request(self):
        request, address = super().get_request()
        return self.context.wrap_socket(request, server_side=True) if self.is_tls else request, address


@pytest.fixture
def receiver():
    server = Receiver()
    yield server
    server.stop()


@pytest.fixture
def mail_server():
    """Start mail servers."""
    with contextlib.ExitStack() as made:

        def start(*arguments, **options):
            server = made.enter_context(_MailServer(*arguments, **options))
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            made.callback(thread.join)
            made.callback(server.shutdown)
            return server

        yield start


@pytest.fixture
def mail(mail_server):
    return mail_server()


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """The context of a server whose certificate this process trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    address = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    today = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    own = tmp_path / "own.pem"
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    own.write_bytes(made.public_bytes(Encoding.PEM) + secret)
    monkeypatch.setenv("SSL_CERT_FILE", str(own))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own)
    return context


@pytest.fixture
def service():
    """Make services that run when the test says so."""
    with contextlib.ExitStack() as made:
        yield lambda *arguments, **options: made.enter_context(contextlib.closing(AlertService(*arguments, **options)))


@pytest.fixture
def sender():
    """Close destinations at the end."""
    with contextlib.ExitStack() as made:
        yield lambda destination: made.enter_context(contextlib.closing(destination))


def settings(tmp_path, text):
    path = tmp_path / "alerts.yaml"
    path.write_text(text)
    return load_alerts(path)


def record(root, losses=LOSSES, name="run", callbacks=()):
    options = {"console": False, "code": False, "summary": False}
    with hl.run(name, root=root, callbacks=callbacks, **options) as run:
        for loss in run.steps(losses):
            run.log(loss=loss)
    return run


def alert(**facts):
    return RaisedAlert(**({"id": "ab", "run": "p/r", "rule": "alert", "message": "loss is 9", "time": 1.0} | facts))


def book_of(root, *, since=1.0):
    book = AlertBook(root)
    with book.change() as content:
        content.since = since
    return book


def raised(book):
    return sorted((each.rule, each.step) for each in book.read().alerts.values())


def test_service_rules_fire_as_in_the_process_and_in_a_replay(tmp_path, service):
    root = tmp_path / "runs"
    root.mkdir()
    book = book_of(root)
    chosen = settings(tmp_path, RULES)
    live = record(root, callbacks=chosen.rules())

    service(root, chosen).evaluate()

    in_process = [(e.data["rule"], e.step) for e in hl.read(live.dir) if getattr(e, "name", "") == "alert"]
    assert sorted((a.subscriber, a.step) for a in hl.replay(live.dir, chosen.rules()).alerts) == sorted(in_process)
    # Once per run where nothing arms the rule again.
    first = sorted({("alert", 2), *(entry for entry in in_process if entry[0] != "alert")})
    own = [entry for entry in raised(book) if not entry[0].endswith("(recorded)")]
    assert own == first
    assert ("high", 5) in first
    # What the process recorded is taken over: once for a rule that fires at each value, otherwise all.
    recorded = sorted({("alert (recorded)", 2), *((f"{rule} (recorded)", step) for rule, step in in_process[1:])})
    assert [entry for entry in raised(book) if entry[0].endswith("(recorded)")] == [
        entry for entry in recorded if entry[0] != "alert (recorded)" or entry[1] == 2
    ]


def test_service_follows_a_live_run_and_raises_nothing_twice(tmp_path, service):
    root = tmp_path / "runs"
    root.mkdir()
    book = book_of(root)
    watch = service(root, settings(tmp_path, RULES))
    with hl.run("live", root=root, console=False, code=False, summary=False) as run:
        seen = []
        for loss in run.steps(LOSSES):
            run.log(loss=loss)
            watch.evaluate()
            seen.append(len(raised(book)))
    watch.evaluate()
    service(root, watch.settings).evaluate()  # as after a restart

    assert raised(book) == [("alert", 2), ("high", 2), ("high", 5), ("no_progress", 7)]
    assert seen == sorted(seen)
    assert seen[-1] >= 2


def test_service_logs_each_new_alert_once_and_no_metric_that_a_run_does_not_have(tmp_path, service, caplog):
    root = tmp_path / "runs"
    root.mkdir()
    book_of(root)
    record(root, [0.9, 0.9, 0.9, 0.9])
    watch = service(
        root, settings(tmp_path, "callbacks: [{alert: {metric: loss, above: 0.8}}, {alert: {metric: other}}]")
    )
    caplog.clear()
    for _ in range(2):
        watch.evaluate()
    (line,) = [entry.getMessage() for entry in caplog.records]
    assert line.endswith(": alert: loss is 0.9, above 0.8, at step 1")


def test_service_ignores_what_was_recorded_before_it_first_ran(tmp_path, service):
    root = tmp_path / "runs"
    record(root)
    watch = service(root, settings(tmp_path, RULES))

    watch.evaluate()

    assert raised(watch.book) == []


def test_service_run_that_is_damaged_does_not_keep_others_from_alerts(tmp_path, service):
    root = tmp_path / "runs"
    root.mkdir()
    book_of(root)
    watch = service(root, settings(tmp_path, RULES))
    record(root)
    for name in (b"no text \xff", b"no time", b"endless journal"):
        run = record(root)
        place = run.dir.rename(run.dir.parent / os.fsdecode(name))
        if name == b"no time":
            (place / "run.json").write_text('{"started": 1' + 400 * "0" + "}")
        if name == b"endless journal":
            shutil.rmtree(place / "journal")
            (place / "journal").symlink_to("journal")
    watch.evaluate()
    watch.evaluate()

    alerts = watch.book.read().alerts.values()
    assert len({each.run for each in alerts}) == 3


def test_service_silence_is_raised_once_until_the_run_records_again(tmp_path, service):
    root = tmp_path / "runs"
    now = [100.0]
    recorder = hl.Recorder(root / "p" / "quiet", clock=lambda: now[0])
    (root / "p" / "quiet" / "run.json").write_text("{}")
    book_of(root)
    watch = service(root, settings(tmp_path, "silence_seconds: 30"), clock=lambda: now[0])
    counts = []
    for at in (100.0, 120.0, 140.0, 160.0):
        now[0] = at
        if at == 100.0:
            recorder.status("running", step=0)
        watch.evaluate()
        counts.append(len(raised(watch.book)))
    recorder.log(loss=1.0, step=1)
    watch.evaluate()
    now[0] = 200.0
    watch.evaluate()
    counts.append(len(raised(watch.book)))
    recorder.close()
    assert counts == [0, 0, 1, 1, 2]


def test_delivery_of_each_alert_comes_once_and_after_failures(tmp_path, service):
    receiver, now = Receiver(503, 500), [1000.0]
    root = tmp_path / "runs"
    root.mkdir()
    watch = service(
        root, settings(tmp_path, f"deliver: [{{webhook: {{url: '{receiver.url}/in'}}}}]"), clock=lambda: now[0]
    )
    book_of(root)
    watch.book.add([alert()], ["webhook"])
    for _ in range(6):
        watch.deliver()
        now[0] += 10
    receiver.stop()

    assert receiver.messages == ["loss is 9"]
    assert receiver.requests[0].key == "ab"
    state = watch.book.read().alerts["ab"].deliveries["webhook"]
    assert (state.state, state.attempts) == ("delivered", 3)


def test_delivery_refused_is_failed_with_the_reason(tmp_path, service):
    receiver = Receiver(401)
    root = tmp_path / "runs"
    root.mkdir()
    watch = service(root, settings(tmp_path, f"deliver: [{{webhook: {{url: '{receiver.url}/s3cret'}}}}]"))
    watch.book.add([alert()], ["webhook"])
    watch.deliver()
    watch.deliver()
    receiver.stop()

    state = watch.book.read().alerts["ab"].deliveries["webhook"]
    assert (state.state, receiver.requests) == ("failed", [])
    assert ("401" in state.error, "s3cret" in state.error) == (True, False)


def test_delivery_after_a_kill_between_raising_and_sending(tmp_path, receiver):
    root = tmp_path / "runs"
    root.mkdir()
    book_of(root)
    record(root)
    (tmp_path / "alerts.yaml").write_text(RULES + f"deliver: [{{webhook: {{url: '{receiver.url}'}}}}]\n")
    program = f"""
        import os, signal
        from pathlib import Path
        from hookline.server.alerts import AlertService, load_alerts
        service = AlertService(Path({str(root)!r}), load_alerts(Path({str(tmp_path / "alerts.yaml")!r})))
        service.evaluate()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert (killed.returncode, receiver.requests) == (-signal.SIGKILL, [])

    with AlertService(root, load_alerts(tmp_path / "alerts.yaml"), poll_seconds=0.01) as service:
        wait_until(lambda: all(each.state == "delivered" for each in service.book.read().alerts.values()))

    assert sorted(request.body["rule"] for request in receiver.requests) == ["alert", "high", "high", "no_progress"]


def test_slack_message_has_no_markup_of_the_run(receiver, sender):
    sender(Slack(receiver.url)).send(alert(run="p/<!channel>", message="a & b"))

    assert [request.body for request in receiver.requests] == [{"text": "[warning] p/&lt;!channel&gt;: a &amp; b"}]


def test_webhook_takes_secrets_from_the_environment(receiver, monkeypatch, sender):
    monkeypatch.setenv("PAGER_TOKEN", "s3cret")
    sender(Webhook(receiver.url, {"Authorization": "Bearer ${PAGER_TOKEN}"})).send(alert(value=float("nan")))

    assert receiver.requests[0].headers["authorization"] == "Bearer s3cret"
    assert receiver.requests[0].body["value"] == "NaN"


def test_email_is_one_message_with_the_id_of_the_alert(mail):
    sender = Email("127.0.0.1", "hookline@example.org", ["me@example.org"], mail.server_address[1], security="none")
    sender.send(alert(message="loss\r\nBcc: all@example.org", step=7))

    ((text, user, is_secure),) = mail.mails
    assert (user, is_secure) == ("", False)
    head = text.partition("\r\n\r\n")[0]
    assert "Message-ID: <ab@hookline>" in head
    assert "Subject: [warning] p/r: loss Bcc: all@example.org" in head
    assert "step: 7" in text


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_email_is_encrypted_and_logs_in_with_a_password_of_the_environment(
    mail_server, certificate, monkeypatch, security
):
    server = mail_server(certificate, is_tls=security == "tls")
    options = {"port": server.server_address[1], "security": security, "user": "me", "password": "${SMTP_PASSWORD}"}
    sender = Email("127.0.0.1", "hookline@example.org", ["me@example.org"], **options)
    monkeypatch.setenv("SMTP_PASSWORD", "s3cret")
    sender.send(alert())
    assert [(user, is_secure) for _, user, is_secure in server.mails] == [("me", True)]
    monkeypatch.setenv("SMTP_PASSWORD", "wrong")
    with pytest.raises(hl.RefusedError, match="SMTPAuthenticationError") as refused:
        sender.send(alert())
    assert "wrong" not in str(refused.value)
    monkeypatch.delenv("SSL_CERT_FILE")  # a server that this machine does not trust gets neither mail nor password
    with pytest.raises(ssl.SSLCertVerificationError):
        sender.send(alert())
    assert len(server.mails) == 1


def test_desktop_notification_has_the_run_and_the_message_as_texts(tmp_path, monkeypatch):
    program = tmp_path / "notify-send"
    program.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$(dirname "$0")/shown"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    Desktop().send(alert(run="--help", message="<b>loss</b> is 9", severity="error"))
    shown = (tmp_path / "shown").read_text().splitlines()
    assert shown == ["--urgency=critical", "--app-name=hookline", "--", "--help", "&lt;b&gt;loss&lt;/b&gt; is 9"]
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(hl.RefusedError, match="Install libnotify"):
        Desktop().send(alert())


def test_email_to_an_unknown_recipient_is_refused(mail):
    sender = Email("127.0.0.1", "hookline@example.org", ["nobody@example.org"], mail.server_address[1], security="none")
    with pytest.raises(hl.RefusedError, match="SMTPRecipientsRefused"):
        sender.send(alert())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rules: []", "callbacks, silence_seconds, deliver"),
        ("silence_seconds: -1", "silence_seconds"),
        ("deliver: [pigeon]", "webhook, slack, email, desktop"),
        ("deliver: [{webhook: {url: nowhere}}]", "http"),
        ("deliver: [{email: {host: h, sender: a, to: [b]}}]", "mail addresses"),
        ("deliver: [{email: {host: h, sender: a@b, to: [c@d], user: u, security: none}}]", "unencrypted"),
        ("callbacks: [{alert: {abve: 3}}]", "above"),
    ],
)
def test_alert_file_with_a_mistake_says_what_is_accepted(tmp_path, text, message):
    with pytest.raises(hl.HooklineError, match=message):
        settings(tmp_path, text)


def test_book_mutes_and_acknowledgements_stop_deliveries(tmp_path):
    now = [10.0]
    book = AlertBook(tmp_path, clock=lambda: now[0])
    book.mute(rule="alert", seconds=60)
    book.add([alert(), alert(id="cd", rule="other")], ["webhook"])
    assert {each.id: each.state for each in book.read().alerts.values()} == {"ab": "muted", "cd": "pending"}

    assert book.acknowledge(["c"], by="me") == ["cd"]
    now[0] = 80.0
    book.add([alert(id="ef")], ["webhook"])

    states = {each.id: each.state for each in book.read().alerts.values()}
    assert states == {"ab": "muted", "cd": "acknowledged", "ef": "pending"}
    with pytest.raises(hl.UnknownNameError, match="no alert"):
        book.acknowledge(["zz"])
    with pytest.raises(hl.OptionError, match="Give a rule"):
        book.mute()


def test_book_changed_by_several_threads_keeps_everything(tmp_path):
    adds = [partial(AlertBook(tmp_path).add, [alert(id=f"{number:02}")], []) for number in range(12)]
    threads = [threading.Thread(target=add) for add in adds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(AlertBook(tmp_path).read().alerts) == [f"{number:02}" for number in range(12)]


def test_book_that_is_damaged_or_a_link_is_refused(tmp_path):
    book = AlertBook(tmp_path)
    book.path.parent.mkdir()
    book.path.write_text("{")
    with pytest.raises(hl.ConfigError, match="Remove it"):
        book.read()
    book.path.unlink()
    book.path.symlink_to("/etc/passwd")
    with pytest.raises(hl.ConfigError, match="cannot be read"):
        book.read()
