"""What the README says is true: its code runs, its tables are the published results, its commands exist."""

import re
from pathlib import Path

import pytest

from secateur.report.tables.readme import references_text, results_page, with_results

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_python_in_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    exec("\n".join(blocks), names)
    assert type(names["pruned"]).__name__ == "Sequential"


def test_the_tables_in_the_readme_come_from_the_results():
    assert with_results(README, ROOT / "results") == README, "run `make readme`"


def test_the_page_of_results_comes_from_the_results():
    page = (ROOT / "docs" / "results.md").read_text()
    assert results_page(ROOT / "results") == page, "run `make readme`"


def test_the_references_of_the_package_come_from_the_results():
    shipped = ROOT / "src" / "secateur" / "experiments" / "references.json"
    assert references_text(ROOT / "results") == shipped.read_text(), "run `make readme`"


def test_the_files_that_the_readme_links_to_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert len(links) > 5
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def test_the_commands_in_the_readme_exist():
    from secateur.cli import COMMANDS

    used = set(re.findall(r"^    secateur (\w+)", README, re.MULTILINE))
    assert used == used & COMMANDS.keys() != set()


def test_the_two_commands_at_the_top_are_targets_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\w+)", README, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_a_readme_without_a_place_for_results_is_refused():
    with pytest.raises(ValueError, match="no place for results"):
        with_results("# nothing here", ROOT / "results")
