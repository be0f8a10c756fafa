"""The package as a whole: imports point one way, importing is silent, public names are documented and typed."""

import ast
import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import secateur

ROOT = Path(secateur.__file__).parent

# A part may import itself and the parts of the lines above its own.
LAYERS = (
    ("native", "nearest", "atomic", "plain_data", "budget", "memory", "sentences"),
    ("table",),
    ("theta", "kmeans", "rate", "encode", "graph"),
    ("theta_autograd",),
    ("weights",),
    ("functions",),
    ("sibling", "prune", "quantize", "train"),
    ("pruner",),
    ("measure", "data", "networks"),
    ("pretrained",),
    ("files", "methods"),
    ("run",),
    ("transfer",),
    ("job",),
    ("results", "literature"),
    ("experiments",),
    ("report",),
    ("compress",),
    ("integrations",),
    ("cli",),
    ("__main__",),
)
FILES = sorted(file.relative_to(ROOT).as_posix() for file in ROOT.rglob("*.py") if file != ROOT / "__init__.py")
LAYER_OF = {part: layer for layer, parts in enumerate(LAYERS) for part in parts}


def parts_imported(source):
    """Name the parts of secateur that a module imports, wherever in it; the package itself counts as "secateur"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
            assert node.level == 0, f"line {node.lineno}: write relative imports out"
        else:
            continue
        for parts in (module.split(".") for module in modules):
            if parts[0] == "secateur":
                yield next((part for part in parts[1:2] if part in LAYER_OF), "secateur")


@pytest.mark.parametrize("file", FILES)
def test_imports_point_one_way(file):
    own = file.removesuffix(".py").split("/")[0]
    wrong = {
        part
        for part in parts_imported((ROOT / file).read_text(encoding="utf-8"))
        if part != own and LAYER_OF.get(part, len(LAYERS)) >= LAYER_OF[own]
    }
    assert not wrong, f"{own} must not import {wrong}"


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("encode/")])
def test_the_file_format_knows_tensors_only(file):
    imported = set(parts_imported((ROOT / file).read_text(encoding="utf-8")))
    assert imported.isdisjoint({"models", "networks", "data", "measure", "secateur"})


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("import secateur.cli", "cli"),
        ("from secateur.train.loop import fit", "train"),
        ("def f():\n    from secateur import data", "data"),
        ("from secateur import penalty", "secateur"),
        ("import secateur", "secateur"),
    ],
)
def test_every_form_of_import_is_seen(line, part):
    assert list(parts_imported(line)) == [part]


def test_importing_is_silent_and_loads_nothing_optional():
    program = (
        "import sys, torch; known = set(sys.modules); import secateur; "
        "[getattr(secateur, name) for name in secateur.__all__]; print(*sorted(set(sys.modules) - known))"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert done.stdout.count("\n") == 1
    assert "secateur" in loaded
    optional = {"accelerate", "rich", "tyro", "sklearn", "PIL", "torchvision", "matplotlib"}
    assert loaded.isdisjoint(optional | {"onnx", "onnxruntime", "onnxscript", "openvino"})


@pytest.mark.parametrize("name", secateur.__all__)
def test_a_public_name_says_what_it_is_in_a_sentence(name):
    sentence = (getattr(secateur, name).__doc__ or "").split("\n\n")[0].strip()
    assert sentence[:1].isupper()
    assert sentence.endswith(".")
    assert " " in sentence


def test_the_public_names_are_few_and_listed_once():
    assert len(set(secateur.__all__)) == len(secateur.__all__) < 36


def test_importing_the_package_does_not_wait_for_torch():
    program = "import sys, secateur, secateur.cli; print('torch' in sys.modules, 'tyro' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("line", ["import secateur.prune", "from secateur.prune import prune", "import secateur.cli"])
def test_a_function_is_not_hidden_by_the_module_it_lives_in(line):
    program = f"{line}; import secateur; print(callable(secateur.prune), callable(secateur.theta), dir(secateur)[:1])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split()[:2] == ["True", "True"]


def test_the_public_names_are_those_that_type_checkers_see():
    tree = ast.parse((ROOT / "__init__.py").read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    seen = {(node.module, alias.name) for node in imports for alias in node.names}
    assert seen == {(f"secateur.{home}", name) for name, home in secateur._HOME_OF.items()}
    assert sorted(secateur._HOME_OF) == sorted(secateur.__all__)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        secateur.nonsense  # noqa: B018


def test_the_package_says_that_it_is_typed():
    assert resources.files(secateur).joinpath("py.typed").is_file()
