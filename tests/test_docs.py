"""The documentation is true: its code runs, its commands exist, its links lead somewhere, and the site builds."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

import secateur
from secateur.cli import COMMANDS, load_command
from secateur.cli.flags import flags
from secateur.cli.training import Training
from secateur.data import DATA_SETS
from secateur.methods import METHODS
from secateur.networks import NETWORKS
from secateur.pretrained import PRETRAINED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {page.name: page.read_text() for page in sorted(DOCS.glob("*.md"))}
PYTHON = {name: re.findall(r"```python\n(.*?)```", page, re.DOTALL) for name, page in PAGES.items()}

_spec = importlib.util.spec_from_file_location("lines", DOCS / "lines.py")
lines = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(lines)


ONNX = ("onnx", "onnxscript", "onnxruntime")
NEEDS = {"frameworks.md": ("lightning", "transformers"), "transformers.md": ("transformers", *ONNX), "deploy.md": ONNX}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # Lightning's, of torch
@pytest.mark.parametrize("name", [name for name, blocks in PYTHON.items() if blocks])
def test_the_python_on_a_page_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for package in NEEDS.get(name, ("sklearn",)):
        pytest.importorskip(package, reason=f"{name} needs {package}")
    for table in (METHODS, NETWORKS, DATA_SETS, PRETRAINED):  # a page may add to them
        monkeypatch.setattr(table, "_entries", dict(table._entries))
    # As a module, so that dataclasses of the page find their own names.
    page = type(sys)("page")
    monkeypatch.setitem(sys.modules, "page", page)
    exec(compile("\n".join(PYTHON[name]), name, "exec"), page.__dict__)


def flags_of(command):
    """Return the flags of a command; one that trains has the settings of every method as well."""
    kind = load_command(command)
    methods = METHODS.values() if issubclass(kind, Training) else ()
    return {flag for each in (kind, *methods) for flag in flags(each)}


def test_the_tour_the_questions_and_the_paper_have_python_to_run():
    assert all(PYTHON[name] for name in ("tour.md", "faq.md", "paper.md", "budget.md", "own.md", "method.md", *NEEDS))


@pytest.mark.parametrize("page", [*DOCS.glob("*.md"), *ROOT.glob("*.md")], ids=lambda page: page.name)
def test_no_merge_left_its_markers_on_a_page(page):
    assert not re.search(r"^(<{7} |={7}$|>{7} )", page.read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", PAGES)
def test_every_command_and_flag_on_a_page_exists(name):
    for line in re.findall(r"^    secateur (.+)$|`secateur ([^`]+)`", PAGES[name], re.MULTILINE):
        command, *words = "".join(line).partition("#")[0].split()
        assert command in COMMANDS, line
        used = {word.partition("=")[0] for word in words if word.startswith("--")}
        assert used <= flags_of(command), line


def test_every_flag_that_is_mentioned_alone_belongs_to_a_command():
    known = {flag for command in COMMANDS for flag in flags_of(command)}
    mentioned = {flag for page in PAGES.values() for flag in re.findall(r"`(--[a-z-]+)(?: [^`]*)?`", page)}
    assert len(mentioned) > 5
    assert mentioned <= known


@pytest.mark.parametrize("name", PAGES)
def test_links_to_lines_lead_to_the_code_they_show(name):
    assert lines.refreshed(PAGES[name]) == PAGES[name], "run `make readme`"


def test_a_link_to_code_that_is_gone_or_not_unique_is_refused(tmp_path):
    (tmp_path / "code.py").write_text("a = 1\nb = 2\na = 1\n")
    assert lines.line_of("b = …", tmp_path / "code.py") == 2
    for code, found in (("c = 3", 0), ("a = 1", 2)):
        with pytest.raises(ValueError, match=f"{found} lines hold"):
            lines.line_of(code, tmp_path / "code.py")


@pytest.mark.parametrize("name", PAGES)
def test_links_to_files_lead_to_files(name):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", PAGES[name])
    assert [link for link in links if "://" not in link and not (DOCS / link).exists()] == []


def test_every_public_name_is_in_the_reference():
    alone = set(re.findall(r"auto(?:function|class|exception):: (\w+)", PAGES["api.md"]))
    among_others = {name for names in re.findall(r":members: (.+)", PAGES["api.md"]) for name in names.split(", ")}
    assert alone <= set(secateur.__all__) <= alone | among_others


def test_the_settings_of_the_budget_are_flags_of_compress():
    settings = set(re.findall(r"^\|.*?`(--[a-z-]+)`", PAGES["budget.md"], re.MULTILINE))
    assert settings
    assert settings <= flags_of("compress")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'secateur[docs]'")
    folder = tmp_path_factory.mktemp("site")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", str(DOCS), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_site_builds_without_a_warning_and_has_every_page(site):
    assert all((site / name.replace(".md", ".html")).is_file() for name in PAGES)


def test_the_site_makes_no_network_requests(site):
    asked = [
        (page.name, link)
        for page in site.rglob("*.html")
        for link in re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"(?:https?:)?(//[^\"]+)", page.read_text()
        )
    ]
    assert asked == []
    styles = [style.name for style in site.rglob("*.css") if re.search(r"url\((?:https?:)?//", style.read_text())]
    assert styles == []


def test_a_link_to_a_line_of_code_leads_to_that_line_in_the_site(site):
    page = (site / "paper.html").read_text()
    links = re.findall(r'href="(source/[^"#]+\.html)#(L-\d+)"', page)
    assert len(links) > 15
    assert all(f'id="{anchor}"' in (site / file).read_text() for file, anchor in links)
