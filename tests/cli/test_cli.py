import errno
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
import torch
from commands import sentence
from rich.console import Console
from typing_extensions import Doc

import secateur
from secateur.budget import Budget
from secateur.cli import COMMANDS, load_command
from secateur.cli.complaints import UsageError
from secateur.cli.reproduce import Reproduce
from secateur.cli.training import Compress
from secateur.experiments import presets, reference
from secateur.job import Coding, InputConfig
from secateur.methods import METHODS, Budgeted, Dense, FewValues, Joint, Manessi2018
from secateur.pretrained import PRETRAINED
from secateur.report.terminal import Watcher
from secateur.sibling import SiblingConfig
from secateur.train.recipe import Recipe

TINY = ("prune", "lenet-300-100", "--data", "digits", "--epochs", "1", "--fine-tune-epochs", "1", "--rho", "0.2")


@pytest.fixture(autouse=True)
def _in_an_empty_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _with_a_published_reference(monkeypatch):
    """Dense runs of the paper preset on digits, so that not every test has to train one."""
    known = reference.PublishedReference(data="digits", validation=1.25, test=1.5, seeds=5)
    monkeypatch.setattr(reference, "_references", lambda: {"lenet-300-100": {"paper": known}})


# Wrong usage


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("prnue lenet-5", 'there is no command "prnue": did you mean "prune"?'),
        ("prune lenet5", 'there is no network "lenet5": did you mean "lenet-5"?'),
        ("prune lenet-5 --data minst", 'there is no data set "minst": did you mean "mnist"?'),
        ("prune lenet-5 --preset qick", 'there is no preset "qick": did you mean "quick"?'),
        ("prune lenet5 --preset quick", 'there is no network "lenet5": did you mean "lenet-5"?'),
        ("prune lenet-5 --from pretrained", "there are no pretrained weights of lenet-5, only of resnet-50-v1, "),
        ("prune lenet-5 --from no.safetensors", "no.safetensors does not exist: give a file, or pretrained"),
        (
            "prune lenet-5 --from pretraned",
            'a run starts from "pretrained" or from a file (.safetensors, .cut or .net), got pretraned',
        ),
        ("prune lenet-5 --form pretrained", 'there is no flag "--form": did you mean "--from"?'),
        ("prune lenet-5 --lamda-t 1", 'there is no flag "--lamda-t": did you mean "--lambda-t"?'),
        ("prune lenet-5 --lamda-t=1", 'there is no flag "--lamda-t": did you mean "--lambda-t"?'),
        ("watch --prot 1", 'there is no flag "--prot": did you mean "--port"?'),
        ("evaluate --no-json --data_root . --rnus=x", 'there is no flag "--rnus": did you mean "--runs"?'),
        ("bench lenet-5 --no-json --batch x", '--batch cannot be "x"'),
        ("prune", "NETWORK is missing: lenet-300-100, lenet-5, "),
        ("prune lenet-5 --method han", 'there is no method "han": did you mean "han2015"?'),
        ("prune lenet-5 --method few-values", 'there is no method "few-values": it is one of'),
        ("prune lenet-5 --method han2015 --rho 1", 'there is no flag "--rho": did you mean'),
        ("prune lenet-5 --data nowhere/photos", "nowhere/photos is not a folder: give one with a folder of pictures"),
        ("pack", "MODEL.safetensors is missing: a plain model, pruned or not, or a run"),
        ("prune alexnet", "alexnet takes images of shape (3, 227, 227) only, got (1, 28, 28)"),
        ("prune lenet-5 --epochs many", '--epochs cannot be "many"'),
        ("prune lenet-5 --epochs 1.5", '--epochs cannot be "1.5"'),
        ("prune lenet-5 --rho x", '--rho cannot be "x"'),
        ("prune lenet-5 --clip-norm x", '--clip-norm cannot be "x"'),
        ("compress lenet-5 --bias-levels 1.5", '--bias-levels cannot be "1.5"'),
        ("bench lenet-5 --threads x", '--threads cannot be "x"'),
        ("prune lenet-5 --epochs", "--epochs needs a value"),
        ("prune lenet-5 --init thta", '--init cannot be "thta", but theta, inverse'),
        ("bench lenet-5 --batch x", '--batch cannot be "x"'),
        ("prune lenet-5 mnist", 'there is no place for "mnist": secateur prune --help'),
        ("prune lenet-5 --lambda-t -1", "lambda_t must be ≥ 0 and finite, got -1.0"),
        ("prune lenet-5 --lambda-wd -1", "lambda_wd must be ≥ 0 and finite, got -1.0"),
        ("prune lenet-5 --cutoff -0.1", "cutoff must be ≥ 0 and finite, got -0.1"),
        ("prune lenet-5 --rho nan", "rho must be ≥ 0 and finite, got nan"),
        ("prune lenet-5 --init-quantile 1", "init_quantile must lie in [0, 1), got 1.0"),
        ("prune lenet-5 --init-quantile -0.1", "init_quantile must lie in [0, 1), got -0.1"),
        ("prune lenet-5 --alpha 0", "alpha must be positive and finite, got 0.0"),
        ("prune lenet-5 --ratio 0.5", "ratio must be above 1, got 0.5"),
        ("prune lenet-5 --ratio nan", "ratio must be a finite number, got nan"),
        ("prune lenet-5 --ratio twenty", '--ratio cannot be "twenty"'),
        (
            "prune lenet-5 --ratio 20 --sparsity 0.9",
            "a budget is one of ratio, sparsity, bytes and error_increase, got",
        ),
        ("compress lenet-5 --bytes 0", "bytes must be a whole number above 0, got 0"),
        ("compress lenet-300-100 --sparsity 0.99999", "99.999 % zeros would keep 2.66 of 266,200 weights: "),
        ("prune lenet-5 --error-increase -1", "error_increase must be ≥ 0, got -1"),
        ("prune lenet-5 --preset best --alpha 0", "alpha must be positive and finite, got 0.0"),
        ("prune lenet-5 --epochs -1", "epochs must be a whole number ≥ 0, got -1"),
        ("prune lenet-5 --threads 0", "threads must be ≥ 1, got 0"),
        ("prune lenet-5 --seed -1", "seed must be ≥ 0, got -1"),
        (
            "prune lenet-5 --seed 99999999999999999999",
            "seed must be ≤ 9,223,372,036,854,775,807, got 99999999999999999999",
        ),
        ("prune lenet-5 --threads 99999999999", "threads must be ≤ 4,096, got 99999999999"),
        ("bench lenet-5 --threads 99999999999", "threads must be ≤ 4,096, got 99999999999"),
        ("compress lenet-5 --conv-levels 0", "conv_levels must lie in 1 … 65535, got 0"),
        (
            "reproduce table1 --networks resnet-20",
            'there is no network with published rows "resnet-20":',
        ),
        ("summary lenet-6", 'there is no network "lenet-6": did you mean "lenet-5"?'),
        ("reproduce table4", 'there is no table or figure "table4": did you mean "table'),
        ("reproduce rival --networks alexnet", "rival is run on MNIST, which alexnet does not take"),
        ("reproduce curve --network resnet-20 --part dense", "--part is for alexnet-features: curve has no parts"),
        ("reproduce rival --data digits", "--data is for table1, table2 and alexnet-features, not for rival"),
        ("reproduce alexnet-features --seeds 3", "alexnet-features is run with one seed: --seeds 1, not 3"),
        ("reproduce table1 --data imagenett", 'there is no data set "imagenett": did you mean "imagenette"?'),
        ("reproduce table1 --networks lenet5", 'there is no network "lenet5": did you mean "lenet-5"?'),
        ("reproduce table1 --preset qick", 'there is no preset "qick": did you mean "quick"?'),
        ("reproduce table1 --seeds -1", "seeds must be ≥ 0, got -1"),
        ("reproduce table1 --workers 0", "workers must be ≥ 1, got 0"),
        ("compare lenet-300-10", 'there is no network "lenet-300-10": did you mean "lenet-300-100"?'),
        ("compare lenet-5 --data mnst", 'there is no data set "mnst": did you mean "mnist"?'),
        ("compare lenet-5 --methods bugdet", 'there is no method "bugdet": did you mean "budget"?'),
        ("compare lenet-5 --ratio 1", "ratio must be above 1, got 1"),
        ("compare lenet-5 --jobs 0", "jobs must be ≥ 1, got 0"),
        ("compare resnet-20 --data cifar10 --preset quick", 'preset "quick" has settings for'),
    ],
)
def test_wrong_usage_is_one_sentence_and_leaves_nothing(command, tmp_path, words, complaint):
    code, printed, complained = command(*words.split())
    assert (code, printed) == (2, "")
    assert sentence(complained).startswith(complaint)
    assert list(tmp_path.iterdir()) == []


def test_without_a_command_the_commands_are_listed(command):
    code, printed, _ = command()
    assert code == 2
    assert re.findall(r"^  (\w+) ", printed, re.M) == list(COMMANDS)
    assert command("--help")[:2] == (0, printed)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_with_the_first_sentence_of_its_class(name):
    assert load_command(name).__doc__.split("\n")[0] == COMMANDS[name].help
    assert load_command(name).__name__.lower() == name


def test_a_reader_that_has_seen_enough_is_no_failure_worth_a_word():
    reading, writing = os.pipe()
    os.close(reading)
    words = [sys.executable, "-m", "secateur", "summary", "lenet-5"]
    with os.fdopen(writing) as closed:
        done = subprocess.run(words, stdout=closed, stderr=subprocess.PIPE, timeout=120)
    assert (done.returncode, done.stderr) == (1, b"")


# Help


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_is_in_words_of_the_command_line(command, name):
    code, printed, _ = command(name, "--help")
    assert code == 0
    assert "None" not in printed
    assert "(default: )" not in printed


def defaults(printed, *configs):
    """Check that a help text names every setting of these configurations with their values."""
    words = " ".join(printed.replace("│", " ").split())
    for config in configs:
        for entry in fields(config):
            flag, value = f"--{entry.name.replace('_', '-')}", getattr(config, entry.name)
            if isinstance(value, bool):
                assert flag in words
            elif not is_dataclass(value):  # whose settings are flags of their own
                shown = "none" if value is None else re.escape(str(value))
                assert re.search(rf" {flag}[ ,].*?\(default: {shown}\)", words), (flag, value)


def test_the_help_of_prune_names_every_hyper_parameter_with_the_papers_value(command):
    code, printed, _ = command("prune", "--help")
    assert code == 0
    defaults(printed, SiblingConfig(), Manessi2018(), Recipe(), InputConfig())
    assert max(map(len, printed.splitlines())) <= 120


@pytest.mark.parametrize("name", presets.preset_names())
def test_the_help_shows_the_defaults_of_the_preset(command, name):
    code, printed, _ = command("compress", "lenet-300-100", "--preset", name, "--help")
    assert code == 0
    chosen = presets.settings(name, "lenet-300-100")
    defaults(printed, chosen.method, chosen.recipe, chosen.inputs, chosen.few_values, chosen.coding)


def test_the_help_of_another_method_has_its_settings_and_not_those_of_the_presets_method(command):
    code, printed, _ = command("prune", "lenet-5", "--method", "han2015", "--help")
    assert code == 0
    assert "--quality FLOAT" in printed
    assert "--rho" not in printed


@pytest.mark.parametrize(
    ("name", "flag"), [("prune", "--clip-norm FLOAT"), ("compress", "--bias-levels INT"), ("bench", "--threads INT")]
)
def test_a_number_that_may_be_absent_is_called_a_number(command, name, flag):
    assert f" {flag} " in command(name, "--help")[1]


@pytest.mark.parametrize("word", ["none", "None"])
def test_a_number_of_a_preset_can_be_taken_away(word):
    words = ["lenet-5", "--preset", "best"]
    assert Compress.parsed(words).few_values.bias_levels is not None
    assert Compress.parsed([*words, "--bias-levels", word]).few_values.bias_levels is None
    assert Compress.parsed([*words, "--bias-levels", "7"]).few_values.bias_levels == 7


@pytest.mark.parametrize(
    ("words", "methods"),
    [
        ("--ratio 30", (Budgeted(budget=Budget(ratio=30)), FewValues())),
        ("--sparsity=0.9", (Budgeted(budget=Budget(sparsity=0.9)), FewValues())),
        ("--error-increase 0.5", (Budgeted(budget=Budget(error_increase=0.5)), FewValues())),
        ("--bytes 9000", (Joint(bytes=9000),)),
        ("--method magnitude --ratio 30", (METHODS["magnitude"](ratio=30), FewValues())),
    ],
)
def test_a_budget_chooses_the_method_that_keeps_it(words, methods):
    assert Compress.parsed(["lenet-300-100", *words.split()]).job().methods == methods


def test_flags_change_the_presets_job_and_nothing_else():
    start = presets.preset("best", "lenet-5", to_file=True)
    assert Compress.parsed(["lenet-5", "--preset", "best"]).job() == start
    job = Compress.parsed(
        ["lenet-5", "--preset=best", "--rho", "0.5", "--levels", "3", "--no-sort-units", "--seed", "4"]
    ).job()
    assert job.seed == 4
    assert job.methods[0] == replace(start.methods[0], rho=0.5)
    assert job.methods[1] == replace(start.methods[1], levels=3)
    assert job.coding == Coding(sort_units=False)
    assert job.recipe == start.recipe


def test_a_networks_name_as_the_value_of_a_flag_is_no_network():
    job = Compress.parsed(["--runs", "lenet-5", "lenet-300-100"]).job()
    assert job == presets.preset("paper", "lenet-300-100", to_file=True)


def test_the_help_without_a_network_has_the_presets_defaults(command):
    code, printed, _ = command("compress", "--preset", "quick", "--help")
    assert code == 0
    chosen = presets.settings("quick", "lenet-300-100")
    defaults(printed, chosen.method, chosen.recipe, chosen.inputs, chosen.few_values, chosen.coding)


def test_a_folder_is_known_by_its_absolute_path(tmp_path):
    (tmp_path / "photos").mkdir()
    job = Compress.parsed(["lenet-5", "--data", "photos"]).job()
    assert job.data == str(tmp_path / "photos")


def test_a_file_to_start_from_is_known_by_its_absolute_path_and_a_run_by_its_network(tmp_path, monkeypatch):
    monkeypatch.setitem(PRETRAINED, "lenet-5", PRETRAINED["squeezenet"])
    (tmp_path / "a.cut").touch()
    (tmp_path / "run").mkdir()
    for name in ("job.json", "model.safetensors"):
        (tmp_path / "run" / name).touch()
    assert Compress.parsed(["lenet-5", "--from", "a.cut"]).job().start == str(tmp_path / "a.cut")
    assert Compress.parsed(["lenet-5", "--from=run"]).job().start == str(tmp_path / "run" / "model.safetensors")
    assert Compress.parsed(["lenet-5", "--from", "pretrained"]).job().start == "pretrained"
    assert Compress.parsed(["lenet-5"]).job().start == ""


def test_a_method_with_a_setting_that_is_another_flag_is_refused(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Greedy(Dense):
        """Train greedily."""

        name: ClassVar[str] = "greedy"
        lr: Annotated[float, Doc("how greedily")] = 1.0

    monkeypatch.setitem(METHODS, "greedy", Greedy)
    with pytest.raises(UsageError, match=r'method "greedy" has a setting --lr, which is another flag'):
        Compress.parsed(["lenet-5", "--method", "greedy"])


def test_another_method_takes_the_presets_recipe_for_as_many_epochs():
    start = presets.preset("quick", "lenet-5", to_file=True)
    job = Compress.parsed(["lenet-5", "--preset", "quick", "--method", "dense"]).job()
    assert job == start.with_method(Dense())
    assert Compress.parsed(["lenet-5", "--no-quantize"]).job().label == "manessi2018"


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("summary", ["--alpha", "--granularity", "--init-quantile", "--json"]),
        ("evaluate", ["--runs", "--data-root", "--json"]),
        ("reproduce", ["--networks", "--preset", "--seeds", "--workers", "--results", "--runs", "--json"]),
        ("compare", ["--methods", "--ratio", "--seeds", "--preset", "--epochs", "--jobs", "--ray", "--few-values"]),
    ],
)
def test_the_help_of_the_other_commands_names_their_flags(command, name, flags):
    code, printed, _ = command(name, "--help")
    assert code == 0
    assert all(f" {flag}" in printed for flag in flags)


# What a person sees


def newest():
    return max(
        (path for path in Path("runs").iterdir() if "dense" not in path.name), key=lambda path: path.stat().st_mtime
    )


def test_prune_prints_short_lines_one_table_and_where_its_files_are(command):
    code, printed, complained = command(*TINY)
    assert (code, complained) == (0, "")
    epochs = [line for line in printed.splitlines() if re.match(r" +(train|fine-tune) \d/\d ", line)]
    assert len(epochs) == 2
    assert max(map(len, epochs)) <= 80
    assert re.search(r"train 1/1  error +\d+\.\d\d %  +\d+\.\d×  t 0\.\d{3} 0\.\d{3} 0\.\d{3}  0:00 left", printed)
    assert re.search(r"dense +│ 266,200 │ 1,066,440 │ +\d+\.\d\d │", printed)
    assert re.search(r"pruned +│ 2\d\d,\d{3} │", printed)
    assert re.search(r"file +│ 2\d\d,\d{3} │", printed)
    place = newest()
    *_, page, file, following = printed.splitlines()
    assert (page, file) == (f"page: {place}/report.html", f"file: {place}/model.cut")
    assert following == f"next: secateur evaluate {place}"
    assert "fc1.weight │ 300×784" in printed


def test_verbose_shows_the_layers(command):
    code, printed, _ = command(*TINY, "--verbose")
    assert code == 0
    assert re.search(r"all prunable weights +│ 266,200 │", printed)
    assert re.search(r"fc1.weight +│ 235,200 │", printed)


def test_settings_that_prune_next_to_nothing_are_noted_before_training(command):
    _, printed, _ = command(*TINY)
    note, epoch = printed.index("Note: these settings can prune next to nothing"), printed.index("1.1×  t 0.")
    assert note < epoch


def test_evaluate_without_a_run_takes_the_newest_and_has_test_errors_of_both_networks(command):
    command(*TINY, "--reference", "train")
    code, printed, _ = command("evaluate")
    assert code == 0
    assert "test error %" in printed
    assert re.search(r"dense +│ 266,200 │ 1,066,440 │ +\d+\.\d\d │", printed)
    assert printed.splitlines()[-1] == f"file: {newest()}/model.cut"
    assert command("evaluate", str(newest()))[1] == printed


def test_without_any_run_evaluate_says_how_to_make_one(command):
    code, printed, complained = command("evaluate")
    assert (code, printed) == (1, "")
    assert sentence(complained) == "there is no finished run in runs: start one with secateur compress lenet-300-100"


def test_the_reference_of_a_preset_is_published_and_not_trained(command):
    _, printed, _ = command(*TINY)
    assert "First the dense network" not in printed
    assert "1.25 │" in printed
    assert "published" in printed
    _, printed, _ = command(*TINY, "--seed", "1", "--reference", "train")
    assert "First the dense network to compare with" in printed


def test_a_run_of_another_method_is_compressed_evaluated_and_reported(command):
    words = "compress lenet-300-100 --data digits --method han2015 --rounds 1 --retrain-epochs 1 --epochs 1"
    code, printed, _ = command(*words.split(), "--quantize-epochs", "1")
    assert code == 0
    assert "quality=1-round=1-fc 1/1" in printed
    assert newest().name.startswith("lenet-300-100-digits-paper-han2015+few-values-")
    assert command("evaluate")[0] == 0
    assert command("report")[0] == 0
    assert command("inspect")[0] == 0  # the newest run's file


@pytest.mark.parametrize("words", [("inspect",), ("verify",), ("bench", "--repeats", "6", "--engines", "eager")])
def test_a_command_for_a_file_takes_a_run_or_the_newest(command, words):
    command(*TINY)
    newest_one = command(*words, "--json")
    named = command(words[0], str(newest()), *words[1:], "--json")
    file = newest() / "model.cut"
    assert newest_one[0] == named[0] == 0
    if words[0] != "bench":
        assert (
            json.loads(newest_one[1]) == json.loads(named[1]) == json.loads(command(words[0], str(file), "--json")[1])
        )


def test_more_threads_than_cpus_are_not_used(command, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    code, _, complained = command(*TINY, "--epochs", "0", "--fine-tune-epochs", "0", "--threads", "999")
    assert code == 0
    assert "999 threads were asked for, and this machine has 2 CPUs: 2 are used" in complained


def test_a_learning_rate_that_leads_to_guessing_is_a_failure(command):
    words = "prune lenet-300-100 --data digits --method dense --epochs 2 --lr 30"
    code, _, complained = command(*words.split())
    assert code == 1
    assert "no better than guessing: lower the learning rate" in sentence(complained)


def test_a_terminal_without_unicode_gets_ascii():
    words = [sys.executable, "-m", "secateur", "summary", "lenet-5"]
    done = subprocess.run(words, capture_output=True, timeout=120, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert b"50x20x5x5" in done.stdout
    assert b"alpha" in done.stdout


def test_a_table_of_70_columns_keeps_every_digit(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "70")
    command(*TINY)
    _, printed, _ = command("evaluate")
    assert "…" not in printed
    assert max(len(line) for line in printed.splitlines() if "│" in line) <= 70
    assert "1,066,440" in printed


def test_summary_shows_what_will_be_pruned(command):
    code, printed, _ = command("summary", "lenet-5")
    assert code == 0
    assert re.search(r"conv2.weight +│ 50×20×5×5 +│ +25,000 │ +50 │ +500 │", printed)
    assert re.search(r"total +│ +│ +430,500 │ +72 │", printed)


def test_on_a_terminal_a_bar_shows_the_time_left():
    screen = io.StringIO()
    with Watcher(Console(force_terminal=True, file=screen, width=80)) as watcher:
        for done in range(1, 5):
            watcher.step("train", done, 5)
            time.sleep(0.01)
        thresholds = {"fc1": 0.1234, "fc2": 0.2, "fc3": 0.3}
        watcher.epoch({"phase": "train", "epoch": 1, "error": 12.34, "ratio": 123.4, "thresholds": thresholds})
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).strip().splitlines()[-1]
    assert re.search(r"^train .*━ +\d+:\d\d error 12\.34 % +123\.4× +t 0\.123 0\.200 0\.300$", shown.strip())
    assert "\x1b[" in screen.getvalue()


# JSON


def test_json_is_one_document_and_progress_goes_elsewhere(command):
    code, printed, complained = command(*TINY, "--json")
    result = json.loads(printed)
    assert (code, result["weights"]) == (0, 266_200)
    assert "train 1/1" in complained
    _, printed, complained = command("evaluate", "--json")
    assert set(json.loads(printed)) == {"run", "errors", "images", "top5_errors", "wrong"}
    assert complained == ""


def test_the_json_of_a_summary_has_the_totals(command):
    summary = json.loads(command("summary", "lenet-5", "--json")[1])
    assert (summary["weights"], summary["thresholds"]) == (430_500, 72)
    assert [tensor["weights"] for tensor in summary["tensors"]] == [500, 25_000, 400_000, 5_000]


def test_reproduce_runs_prints_and_does_not_repeat_itself(command, monkeypatch):
    tiny = presets.Preset(method=Manessi2018(rho=0.2), recipe=Recipe(epochs=1), few_values=FewValues(quantize_epochs=1))
    monkeypatch.setitem(presets._PRESETS, "paper", {"lenet-300-100": tiny})
    words = ("reproduce", "table1", "--network", "lenet-300-100", "--data", "digits", "--workers", "1")
    code, printed, _ = command(*words)
    assert code == 0
    assert printed.count("wrote results/lenet-300-100-digits/paper/") == 2
    code, printed, complained = command(*words, "--json")
    [table] = json.loads(printed)
    assert (code, complained) == (0, "")
    assert [row[0] for row in table["rows"]] == ["lenet-300-100, secateur paper"]  # nothing is printed for digits


@pytest.mark.parametrize(
    ("what", "tables"), [("table1", 1), ("table2", 1), ("sensitivity", 2), ("rival", 2), ("search", 1)]
)
def test_reproduce_without_seeds_shows_what_is_there(command, tmp_path, what, tables):
    code, printed, _ = command("reproduce", what, "--json")
    assert code == 0
    assert len(json.loads(printed)) == tables
    assert list(tmp_path.iterdir()) == []


# A run that is there already


def test_a_finished_run_is_shown_without_training(command):
    command(*TINY)
    code, printed, _ = command(*TINY)
    assert code == 0
    assert "train 1/1" not in printed
    assert f"{newest()} is finished already: it was not trained again" in printed
    assert "1,066,440" in printed


@pytest.fixture
def interrupted(command, monkeypatch):
    """A run that Ctrl-C ended in its second epoch."""

    def interrupt(self, stage, done, total):
        if done == 15:
            raise KeyboardInterrupt

    words = (*TINY, "--epochs", "2")
    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "step", interrupt)
        code, _, complained = command(*words)
    assert code == 130
    assert sentence(complained) == "interrupted; the run is kept: the same command with --resume continues it"
    return words


def test_an_unfinished_run_is_refused_without_resume_and_goes_on_with_it(command, interrupted):
    code, printed, complained = command(*interrupted)
    assert code == 1
    assert "train 1/2" not in printed
    assert re.fullmatch(r"runs/\S+ holds an unfinished run: add --resume .*", sentence(complained))
    code, printed, _ = command(*interrupted, "--resume")
    assert code == 0
    assert "train 1/2" not in printed
    assert "train 2/2" in printed


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (lambda raw: raw[:-1000], "is not a usable checkpoint"),
        (lambda raw: b"", "is not a usable checkpoint"),
        (lambda raw: raw.replace(b":fc1.", b":fc9."), "was written by another model or optimizer"),
    ],
)
def test_a_broken_checkpoint_is_one_sentence_with_its_path(command, interrupted, spoil, complaint):
    [path] = Path("runs").glob("*/train.checkpoint.safetensors")
    # `interrupted` ends before the checkpoint of its second epoch, after that of its first.
    path.write_bytes(spoil(path.read_bytes()))
    code, _, complained = command(*interrupted, "--resume")
    assert code == 1
    assert sentence(complained).startswith(f"{path} {complaint}")


def test_sigterm_ends_a_run_with_143_in_the_middle_of_an_epoch_and_resume_goes_on(command, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(Watcher, "step", lambda self, stage, done, total: os.kill(os.getpid(), signal.SIGTERM))
        code, _, complained = command(*TINY)
    assert code == 143
    assert sentence(complained) == "interrupted; the run is kept: the same command with --resume continues it"
    done = []
    monkeypatch.setattr(Watcher, "step", lambda self, stage, number, total: done.append(number))
    assert command(*TINY, "--resume")[0] == 0
    assert done[0] == 2


def test_ctrl_c_ends_a_process_with_130_and_leaves_a_run_to_resume(command, tmp_path):
    words = ("prune", "lenet-300-100", "--data", "digits", "--method", "dense", "--epochs", "500", "--threads", "1")
    process = subprocess.Popen(
        [sys.executable, "-m", "secateur", *words],
        env=os.environ | {"PYTHONPATH": str(Path(secateur.__file__).parents[1])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # A shell that runs the tests in the background has made them deaf to Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not list(tmp_path.glob("runs/*/train.checkpoint.safetensors")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert sentence(complained).startswith("interrupted; the run is kept")
    assert "holds an unfinished run" in command(*words)[2]


# Failures


def test_a_directory_that_cannot_be_written_is_one_sentence_with_its_path(command):
    Path("file").write_text("")
    code, _, complained = command(*TINY, "--runs", "file")
    assert code == 1
    assert re.fullmatch(r"file/\S+/job\.json: (Not a directory|File exists)", sentence(complained))


def test_a_full_disk_is_one_sentence_with_its_path(command, monkeypatch):
    def no_room(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_room)
    code, _, complained = command(*TINY)
    assert code == 1
    assert re.fullmatch(r"runs/\S+/job\.json: No space left on device", sentence(complained))
    assert [path for path in Path("runs").rglob("*") if path.is_file()] == []


def test_a_loss_that_is_no_number_is_one_sentence(command):
    code, _, complained = command(*TINY, "--lr", "1e30")
    assert code == 1
    assert re.match(r".* became .* in epoch 1 of stage train: lower the learning rate", sentence(complained))


@pytest.mark.parametrize("name", ["result.json", "job.json"])
def test_a_damaged_file_of_a_finished_run_is_one_sentence(command, name):
    command(*TINY)
    [path] = Path("runs").glob(f"*/{name}")
    path.write_text("{")
    for words in (TINY, ("evaluate",)):
        code, _, complained = command(*words)
        assert code == 1
        assert sentence(complained).startswith(f"{path} is damaged")


@pytest.mark.parametrize("place", [".", "nowhere", "file", "file/below"])
def test_what_is_not_a_run_is_not_evaluated(command, place):
    Path("file").write_text("")
    code, _, complained = command("evaluate", place)
    assert code == 1
    assert sentence(complained).endswith("the run is not finished, or this is not a run's directory")


def test_debug_shows_the_trace_that_is_otherwise_kept_away(command):
    code, _, complained = command("evaluate", "nowhere", "--debug")
    assert code == 1
    assert "Traceback (most recent call last)" in complained
    assert complained.splitlines()[-1].startswith("secateur: nowhere/result.json does not exist")


def test_a_warning_is_one_line(command):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, complained = command(*TINY, "--init-quantile", "0", "--rho", "0", "--alpha", "1e9")
    assert code == 0
    lines = complained.splitlines()
    assert lines
    assert all(re.match(r'secateur: "fc\d\.weight": no threshold gets a gradient', line) for line in lines)


def test_the_module_for_training_is_asked_for_by_name(command, monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    code, _, complained = command(*TINY)
    assert (code, sentence(complained)) == (1, "training needs accelerate: pip install 'secateur[train]'")


def test_threads_are_set_as_asked(command):
    command(*TINY, "--epochs", "0", "--fine-tune-epochs", "0", "--threads", "2")
    assert torch.get_num_threads() == 2


@pytest.mark.slow
def test_two_processes_train_one_run_and_one_of_them_speaks(tmp_path):
    words = shlex.split("prune lenet-300-100 --data digits --epochs 2 --fine-tune-epochs 1 --threads 1 --json")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ended = subprocess.run(
        [*launcher, "-m", "secateur", *words, "--runs", str(tmp_path)], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["training_images"] == 1200
    (directory,) = (path for path in tmp_path.iterdir() if "dense" not in path.name)
    assert [path.name for path in directory.iterdir() if "partial" in path.name] == []
    assert len((directory / "train.jsonl").read_text().splitlines()) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_cannot_be_written_is_one_sentence():
    words = [sys.executable, "-m", "secateur", "--version"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("secateur: ")


def test_output_that_was_closed_is_no_failure():
    words = f'"{sys.executable}" -m secateur --version >&-'
    done = subprocess.run(["bash", "-c", words], stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_part_or_data_asks_for_one_seed_and_nothing_else_does():
    assert len(Reproduce(what="alexnet-features").seeds_to_run) == 0
    assert len(Reproduce(what="alexnet-features", part="dense").seeds_to_run) == 1
    assert len(Reproduce(what="table1", data="digits").seeds_to_run) == 1
    assert len(Reproduce(what="alexnet-features", part="dense", seeds=0).seeds_to_run) == 0
