"""Every callback that README.md and docs/ show behaves as any callback must, and uses only what a loop documents."""

import ast
import contextlib
import dataclasses
import warnings
from pathlib import Path

import pytest
from test_docs import BLOCK, PAGES  # type: ignore[import-not-found]

import hookline as hl
from hookline._engine.moments import MOMENTS
from hookline.integrations.host_loop import HostLoop
from hookline.testing import FakeLoop, check_callback

SHOWN_AS_MISTAKES = {"Misspelt"}


SET = {"seen = []"}
"""What pages set for a callback."""


def unfrozen():
    torch = pytest.importorskip("torch")
    parts = {"backbone": torch.nn.Linear(1, 1), "head": torch.nn.Linear(1, 1)}
    groups = [{"params": part.parameters()} for part in parts.values()]
    return {"model": torch.nn.ModuleDict(parts), "optimizer": torch.optim.SGD(groups, 0.1)}


NEEDED = {"UnfreezeBackbone": unfrozen}
"""What the loop must have for a callback."""


def statements(page: Path) -> list[ast.stmt]:
    blocks = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [each for block in blocks if block["language"] == "python" for each in ast.parse(block["code"]).body]


def callbacks() -> list[tuple[Path, ast.ClassDef]]:
    return [
        (page, node)
        for page in PAGES
        for node in statements(page)
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).endswith("Callback") for base in node.bases)
        and node.name not in SHOWN_AS_MISTAKES
    ]


each = pytest.mark.parametrize(("page", "node"), callbacks(), ids=lambda given: getattr(given, "name", None))


def made_on(page: Path, node: ast.ClassDef):
    """A function that makes the callback as the page does, in what the page imports and sets."""
    namespace = {"__name__": "page"}
    for statement in statements(page):
        if isinstance(statement, ast.Import | ast.ImportFrom) or ast.unparse(statement) in SET:
            with contextlib.suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(ast.unparse(statement), namespace)
    exec(ast.unparse(node), namespace)
    calls = [call for statement in statements(page) for call in ast.walk(statement) if isinstance(call, ast.Call)]
    built = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == node.name]
    expression = compile(ast.unparse(built[0]) if built else f"{node.name}()", str(page), "eval")
    return lambda: eval(expression, namespace)


def test_pages_show_callbacks():
    assert {"LossSpike", "BestLoss", "Log", "UnfreezeBackbone"} <= {node.name for _, node in callbacks()}


@each
def test_callback_on_a_page_behaves_as_any_must(page, node, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_callback(made_on(page, node), **NEEDED.get(node.name, dict)())


@each
def test_callback_on_a_page_uses_what_a_loop_or_context_documents(page, node):
    offered = {"ctx": {field.name for field in dataclasses.fields(hl.LogContext)} | {"log"}}
    for method in node.body:
        if isinstance(method, ast.FunctionDef) and method.name in MOMENTS and len(method.args.args) > 1:
            subject = method.args.args[1].arg
            known = offered.get(MOMENTS[method.name].subject, set(dir(hl.LoopState)))
            used = {
                part.attr
                for part in ast.walk(method)
                if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == subject
            }
            assert used <= known


def test_loops_and_the_fake_have_what_the_loop_documents(tmp_path):
    documented = {name for name in dir(hl.LoopState) if not name.startswith("_")}
    assert documented >= {"dir", "config", "history", "recorder", "stop_reason", "summary", "validation_metrics"}
    for loop in (FakeLoop(), hl.run(root=tmp_path), HostLoop("host", native=None)):
        assert sorted(name for name in documented if not hasattr(loop, name)) == []
