"""Redaction: no secret reaches the disk by any way in, ordinary texts stay as they are, and faults do not leak."""

import argparse
import json
import logging
import re
import subprocess
import sys
import textwrap

import pytest

import hookline as hl
import hookline.logging as hl_logging
from hookline._record.records import Event, Sample
from hookline._record.redaction import Redactor, redact_secrets

GITHUB = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
SECRETS = [
    ("{}", "AKIAIOSFODNN7EXAMPLE"),
    ("aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    ("clone with {}", GITHUB),
    ("{}", "github_pat_11ABCDEFG0abcdefghij_klmnopqrst"),
    ("{}", "glpat-abcdefghij0123456789"),
    ("login('{}')", "hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"),
    ("export WANDB_API_KEY={}", "0123456789abcdef0123456789abcdef01234567"),
    ("key {}, used twice", "sk-proj-abcDEF123456abcDEF123456abcDEF"),
    ("{}", "sk-ant-api03-abcdefghijkl_mnop-qrst12345"),
    ("{}", "xoxb-123456789012-1234567890123-abcdefGHIJKLmnop"),
    ("{}", "AIzaSyA1234567890abcdefghijklmnopqrstuv"),
    ("cookie={}", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcDEFghi"),
    ("password={}", "hunter2hunter2"),
    ('connect("host=db password={}")', "hunter2hunter2"),
    ('{{"password": "{}"}}', "correcthorsebattery"),
    ("token: {}", "a1b2c3d4e5f6"),
    ("Authorization: Bearer {}", "abc.def.ghi"),
    ("curl -H 'Authorization: Basic {}'", "dXNlcjpwYXNz"),
    ("https://user:{}@host/path", "s3cret-pass"),
    ("postgresql://me:{}@db:5432/x", "p4ssw0rd"),
    ("https://host/x?page=1&token={}&next=2", "abcdef"),
]


@pytest.mark.parametrize(("around", "secret"), SECRETS, ids=[secret[:12] for _, secret in SECRETS])
def test_secret_of_a_known_shape_is_replaced_and_what_is_around_it_stays(around, secret):
    text = f"before {around} after\nand more"
    assert redact_secrets(text.format(secret)) == text.format("[redacted]")


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512 num_tokens: 10000000 tokens/s: 12000",
        'pad_token="[PAD]" eos_token: <|endoftext|> bos_token=token_12345678',
        "tokenizer=gpt2-medium-1234",
        "def login(user, password: str = None) -> Optional[str]: pass",
        "token=tokenizer2.decode(ids[0])",
        "password = get_password(user1)",
        "api_key=api_key, token=token",
        "commit 3f2a9c1d8b7e6f5a4c3b2d1e0f9a8b7c6d5e4f3a",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "https://github.com/org/repo.git git@github.com:org/repo.git ssh://git@host/repo",
        "secret santa: gifts for everyone",
        '{"type": "object", "password": "string"}',
        "next token: 12345678",
        "sk-learn-contrib-package-name-that-is-long",
        "What is the key: value pair? key=value12345",
        "https://example.com/a?page=2&sort=asc#part",
        "token=${HF_TOKEN} password=<your password here> api_key=***",
        "bearer bonds are financial instruments",
        "meta-llama/Llama-3.1-8B-Instruct checkpoint-000100/model-00001-of-00030.safetensors",
        "run_1234567890abcdef12 2026-11-15-brave-otter-3",
        "12:30:45 INFO loss=0.25 lr=1e-4 grad_norm=12345678",
        "the password is not here. The token was lost; a secret: nobody knows",
        "İstanbul: token İ = x",
    ],
)
def test_ordinary_text_stays_as_it_is(text):
    assert redact_secrets(text) is text


def test_private_key_is_replaced_line_by_line_so_that_a_diff_keeps_its_lines():
    key = "+-----BEGIN RSA PRIVATE KEY-----\n+MIIEabc\n+-----END RSA PRIVATE KEY-----\n+x = 1"
    assert redact_secrets(key) == "+[redacted]\n+[redacted]\n+[redacted]\n+x = 1"


def test_settings_are_redacted_by_their_names_and_numbers_stay():
    given = {
        "hf_token": "abc",
        "auth": {"apiKey": "x", "DB_PASSWORD": 12345, "client_secret": ["a", "b"]},
        "eos_token": "</s>",
        "tokenizer": "gpt2",
        "max_tokens": 4096,
        "token_file": "/run/token",
        "api_key": "${API_KEY}",
        "password": "",
    }
    redacted = given | {"hf_token": "[redacted]"}
    redacted["auth"] = {"apiKey": "[redacted]", "DB_PASSWORD": "[redacted]", "client_secret": ["[redacted]"] * 2}
    assert Redactor().settings(given) == redacted
    assert Redactor(False).settings(given) == given


def test_command_line_is_redacted_by_the_names_of_its_options():
    given = ["train.py", "--token", "abc", "--lr=1", "--hf-token=abc", "db.password=x", "--max-tokens", "5", GITHUB]
    expected = ["train.py", "--token", "[redacted]", "--lr=1", "--hf-token=[redacted]", "db.password=[redacted]"]
    assert Redactor().command(given) == [*expected, "--max-tokens", "5", "[redacted]"]


def everything(run, text):
    """Record a text in every way there is."""
    run.log(loss=1.0, note=text)
    run.log_samples([{"prompt": text, "completion": "x", "note": [text]}, {"prompt": "x", "completion": text}])
    run.log(
        page=hl.Html(f"<p>{text}</p>"), readme=hl.Markdown(text), text=hl.Text(f"line\n{text}"),
        plot=hl.Figure({"data": [], "layout": {"title": text}}), picture=hl.Html("x", caption=text),
    )  # fmt: skip
    table = hl.Table(["a", "b"], [[text, 1], [f"line\n{text}", {"nested": text}], [hl.Text(text), 2]])
    run.log(table=table)
    table.append([text, None])
    run.log(big=hl.Table(["a"], [[text]] * 600))
    run.recorder.event("alert", message=text, nested={"texts": [text]})
    run.recorder.rewards("exact", [1.0], [text])
    run.recorder.line("INFO", "train", f"said {text}")
    run.recorder.status("running", text, detail=text)
    run.config["later"] = text
    run.summary["best"] = text
    run.notes = f"again {text}"
    run.update_config(more={"deep": text})


def all_bytes(root):
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


def record_failing_run(text, root="runs", **options):
    config = argparse.Namespace(deep={"url": text}, plain=text)
    with (
        pytest.raises(RuntimeError),
        hl.run(
            "r",
            root=root,
            config=config,
            tags=[text[:60]],
            notes=text,
            sinks=["jsonl", "csv"],
            summary=False,
            **options,
        ) as run,
    ):
        for _ in run.steps(1):
            everything(run, text)
            raise RuntimeError(f"failed with {text}")
    return run


def test_secret_is_nowhere_in_the_directory_of_a_run_nor_in_what_sinks_write(tmp_path):
    run = record_failing_run(GITHUB)
    found = all_bytes(tmp_path)
    assert GITHUB.encode() not in found
    assert found.count(b"[redacted]") > 30
    assert run.config.plain == GITHUB  # the program's own values stay


def test_function_of_the_user_sees_every_text_that_is_recorded(tmp_path):
    record_failing_run("Alice", redact=lambda text: text.replace("Alice", "somebody"))
    found = all_bytes(tmp_path)
    assert b"Alice" not in found
    assert found.count(b"somebody") > 30


@pytest.mark.parametrize(
    ("redact", "expected"),
    [
        ("A[a-z]+e", "[redacted] and Bob"),
        (["Bob", re.compile("Alice")], "[redacted] and [redacted]"),
        (["Bob", str.upper], "ALICE AND [REDACTED]"),
        ("textwrap:dedent", "Alice and Bob"),
        (False, "Alice and Bob"),
    ],
)
def test_redact_takes_patterns_functions_and_names(redact, expected):
    with hl.run(redact=redact, notes="Alice and Bob", summary=False) as run:
        run.log_samples([{"prompt": "Alice and Bob"}])
    assert json.loads((run.dir / "run.json").read_text())["notes"] == expected
    assert [record.prompt for record in hl.read(run.dir) if isinstance(record, Sample)] == [expected]


@pytest.mark.parametrize("redact", [3, {"a": 1}, "(", "x*", "no.such.module:name", "textwrap:nothing", [None]])
def test_redact_that_is_nothing_of_this_is_an_error_at_the_call(redact):
    with pytest.raises(hl.OptionError, match="redact="):
        hl.run(redact=redact)


def test_redact_false_records_everything(tmp_path):
    with hl.run(redact=False, notes=GITHUB, summary=False) as run:
        run.log_samples([{"prompt": GITHUB}])
    assert (run.dir / "run.json").read_text().count(GITHUB) == 1
    assert [record.prompt for record in hl.read(run.dir) if isinstance(record, Sample)] == [GITHUB]


def test_function_that_fails_leaks_nothing_and_is_counted(tmp_path, caplog):
    def fails(text):
        if "Alice" in text:
            raise ValueError(text)
        return text

    with hl.run(redact=fails, notes="about Alice", summary=False) as run:
        run.log_samples([{"prompt": "Alice"}, {"prompt": "Bob"}])
        run.log(note="Alice")
    assert b"Alice" not in all_bytes(tmp_path)
    assert [r.prompt for r in hl.read(run.dir) if isinstance(r, Sample)] == ["[redaction failed]", "Bob"]
    assert [r.data for r in hl.read(run.dir) if isinstance(r, Event) and r.name == "redaction_failed"] == [{"count": 3}]
    assert ["fails" in r.getMessage() for r in caplog.records if "redact" in r.getMessage()] == [True]
    assert "Alice" not in caplog.text


def test_command_line_of_a_program_is_redacted(tmp_path):
    program = "import hookline as hl\nwith hl.run(summary=False): pass"
    subprocess.run([sys.executable, "-c", program, "--token", "abc-def", f"url={GITHUB}"], check=True, cwd=tmp_path)
    found = all_bytes(tmp_path / "runs")
    assert b"abc-def" not in found
    assert GITHUB.encode() not in found


def test_logging_configuration_redacts_what_its_handlers_and_its_run_write(tmp_path):
    (tmp_path / "logging.yaml").write_text(
        textwrap.dedent("""
        redact: ["A[a-z]+e"]
        root: {level: INFO, handlers: [file]}
        loggers: {hookline.model: {level: INFO, handlers: [csv], propagate: false}}
        handlers:
          file: {class: logging.FileHandler, filename: logs/all.log}
          csv: {class: hookline.logging.CSVHandler, filename: logs/out.csv, columns: [step, question, llm_answer]}
        """)
    )
    with hl.run(summary=False) as run:
        hl_logging.initialize("logging.yaml", run=run)
        try:
            logging.getLogger("mine").error("Alice said %s", GITHUB)
            hl_logging.log_model_output("Alice?", "4", GITHUB, answer=GITHUB, step=1)
        finally:
            hl_logging.shutdown()
    assert b"[redacted] said [redacted]" in (tmp_path / "logs" / "all.log").read_bytes()
    assert b"[redacted]?,[redacted]" in (tmp_path / "logs" / "out.csv").read_bytes()
    found = all_bytes(tmp_path / "logs") + all_bytes(run.dir)
    assert b"Alice" not in found
    assert GITHUB.encode() not in found


def test_logging_configuration_with_a_wrong_redact_names_the_line(tmp_path):
    (tmp_path / "logging.yaml").write_text("version: 1\nredact: ['(']\n")
    with pytest.raises(hl.ConfigError, match=r"logging.yaml:2.*not a regular expression"):
        hl_logging.initialize("logging.yaml")
