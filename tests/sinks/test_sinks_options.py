"""Options of sinks that their own tests leave at the default: each changes what the sink does."""

import datetime
import ipaddress
import ssl
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hookline._record.delivery import Delivery, Pace
from hookline._record.recorder import Recorder
from hookline._record.sink import SINKS, make_sink, make_sinks
from hookline.sinks import HooklineSink, PrometheusSink, StatusSink, WandbSink

PACE = Pace(poll_seconds=0.01, retry_seconds=0.01, longest_seconds=0.05)
NEEDED = {
    "function": {"function": "builtins:print"},
    "hookline": {"url": "http://host:8765"},
    "status": {"endpoint": "http://host/status"},
}
"""Settings that have no default."""


@pytest.mark.parametrize("kind", SINKS.names())
def test_every_sink_goes_by_the_name_it_is_given(kind):
    sink = make_sink({kind: {**NEEDED.get(kind, {}), "name": "mine"}})
    assert (list(make_sinks([sink])), make_sink(sink.spec()).name) == (["mine"], "mine")


@pytest.mark.parametrize("kind", ["hookline", "status"])
def test_timeout_seconds_is_how_long_an_answer_is_waited_for(tmp_path, monkeypatch, kind):
    httpx = pytest.importorskip("httpx")
    given = {}

    class Stopped(Exception):
        pass

    def client(**options):
        given.update(options)
        raise Stopped

    monkeypatch.setattr(httpx, "Client", client)
    sink = make_sink({kind: {**NEEDED[kind], "timeout_seconds": 0.5}})
    with pytest.raises(Stopped):
        sink.open(tmp_path, None)
    assert given["timeout"].read == 0.5


def test_prometheus_host_is_the_interface_it_listens_on(tmp_path):
    pytest.importorskip("prometheus_client")
    recorder = Recorder(tmp_path / "run")
    recorder.log(loss=0.5, step=1)
    recorder.close()
    sink = PrometheusSink(port=0, host="127.0.0.2")
    delivery = Delivery(tmp_path / "run", "prometheus", sink, PACE)
    delivery.round()
    assert sink.address.startswith("http://127.0.0.2:")
    with urllib.request.urlopen(sink.address, timeout=10) as answer:
        assert b"hookline_metric" in answer.read()
    delivery.close(0)
    delivery.run()


@pytest.mark.parametrize("system_metrics", [True, False])
def test_wandb_system_metrics_decides_whether_wandb_measures_the_machine(tmp_path, monkeypatch, system_metrics):
    wandb = pytest.importorskip("wandb")
    given = {}

    class Stopped(Exception):
        pass

    def init(**options):
        given.update(options)
        raise Stopped

    monkeypatch.setattr(wandb, "init", init)
    sink = WandbSink(mode="offline", directory=tmp_path, system_metrics=system_metrics)
    with pytest.raises(Stopped):
        sink.open(tmp_path, None)
    assert given["settings"].x_disable_stats is not system_metrics


def certificate(directory):
    """A self-signed certificate for 127.0.0.1, with its key, in one file."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "monitor")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    file = directory / "monitor.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM) + private)
    return file


@pytest.fixture
def monitor(tmp_path):
    """A server behind TLS: its address, its certificate, and how many requests it took."""
    reported = []

    class Monitor(BaseHTTPRequestHandler):
        def do_POST(self):
            reported.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            self.send_response(200)
            self.end_headers()

        do_GET = do_PUT = do_POST

        def log_message(self, *_): ...

    file = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    server = HTTPServer(("127.0.0.1", 0), Monitor)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}/status", file, reported
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("kind", ["status", "hookline"])
def test_ca_file_is_what_a_server_is_trusted_by(tmp_path, monitor, kind):
    pytest.importorskip("httpx")
    address, file, reported = monitor
    made = {
        "status": lambda ca_file: StatusSink(endpoint=address, ca_file=ca_file),
        "hookline": lambda ca_file: HooklineSink(address, token="a-token-for-this-server-alone", ca_file=ca_file),
    }
    recorder = Recorder(tmp_path / "run")
    recorder.status("running", "on its way")
    recorder.close()
    trusted = []
    for ca_file in (None, file):
        delivery = Delivery(tmp_path / "run", kind, made[kind](ca_file), PACE)
        delivery.round()
        trusted.append(len(reported) > 0)
        delivery.close(0)
        delivery.run()
    assert trusted == [False, True]
