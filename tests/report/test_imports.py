"""The report reads results: it neither runs jobs nor knows methods by name."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import secateur

ROOT = Path(secateur.__file__).parent
FILES = sorted((ROOT / "report").rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Return the full names of everything that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_module_of_the_report_imports_a_method(path):
    assert {name for name in imported(path) if name.startswith("secateur.methods")} <= {"secateur.methods.METHODS"}
    assert re.findall(r"\b(?:method|label) (?:==|!=|in) ", path.read_text(encoding="utf-8")) == []


def test_importing_the_report_does_not_import_the_runner():
    modules = [
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES
    ]
    program = f"import sys, {', '.join(modules)}; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    loaded = set(done.stdout.split())
    assert "secateur.experiments.directory" in loaded
    assert loaded.isdisjoint({"secateur.experiments.runner", "secateur.experiments.studies.grid"})


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_is_at_most_400_lines_and_a_function_60(path):
    source = path.read_text(encoding="utf-8")
    assert source.count("\n") <= 400
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno < 60, node.name
