"""The whole pipeline on handwritten digits: prune, quantise, encode, read back."""

import json
from dataclasses import replace

import pytest
import torch

import secateur
from secateur import data
from secateur.cli import main
from secateur.encode import open_archive
from secateur.encode.units import without_dead_units
from secateur.experiments.compress import Compression, compress, evaluate_file, load_file
from secateur.experiments.job import Job, load_model
from secateur.experiments.presets import compression_preset, preset_names
from secateur.experiments.rundir import RunError
from secateur.measure import count, error_rate
from secateur.train.loop import TrainConfig, read_log

JOB = Job(network="lenet-300-100", data="digits", train=TrainConfig(epochs=1, fine_tune_epochs=1, rho=0.2))
FEW = Compression(levels=6, bias_levels=15, quantize_epochs=2)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    torch.set_num_threads(1)
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def finished(root):
    return compress(JOB, FEW, root)


def test_the_file_holds_few_values_and_the_zeros_of_the_run(finished):
    run, file = finished
    pruned, _ = load_model(run.model)
    network = secateur.load(file.packed)
    for name, tensor in network.named_parameters():
        values = tensor[tensor != 0].unique()
        assert len(values) <= (15 if tensor.dim() == 1 else 6), name
    # dead units lose their weights, and no other weight is lost
    assert 0.9 * count(pruned).prunable.kept < count(network).prunable.kept <= count(pruned).prunable.kept


def test_the_record_tells_what_each_step_cost_and_what_the_file_weighs(finished):
    run, file = finished
    record = file.read(file.file_record)
    assert list(record["validation"]) == ["pruned", "quantized", "trained", "decoded"]
    assert record["validation"]["decoded"] == record["validation"]["trained"]
    assert record["validation"]["pruned"] == run.read(run.result)["validation"]["final"]
    assert record["bytes"] == file.packed.stat().st_size
    assert record["fp32_bytes"] == 4 * 266_610


def test_the_live_estimate_is_near_the_size_of_the_file(finished):
    _, file = finished
    *_, last = read_log(file.journal("quantize").log)
    assert last["coded_bytes"] == pytest.approx(file.packed.stat().st_size, rel=0.15)


def test_what_is_finished_is_not_done_again(finished, root):
    _, file = finished
    before = file.packed.stat().st_mtime_ns
    assert compress(JOB, FEW, root)[1] == file
    assert file.packed.stat().st_mtime_ns == before


def test_a_killed_compression_goes_on_and_ends_with_the_same_bytes(finished, root):
    _, file = finished
    content = file.packed.read_bytes()
    file.file_record.unlink()
    file.packed.unlink()
    assert compress(JOB, FEW, root)[1].packed.read_bytes() == content


def test_a_lost_file_is_written_again(finished, root):
    _, file = finished
    content = file.packed.read_bytes()
    file.packed.unlink()
    assert compress(JOB, FEW, root)[1].packed.read_bytes() == content


def test_a_file_of_other_settings_is_not_taken_for_this_one(finished, root):
    _, file = finished
    record = file.read(file.file_record)
    file.write(file.file_record, record | {"compression": record["compression"] | {"levels": 5}})
    with pytest.raises(RunError, match="other settings"):
        compress(JOB, FEW, root)
    file.write(file.file_record, record)


def test_the_file_alone_is_enough_to_judge_the_network(finished):
    _, file = finished
    network, scaling, data_set = load_file(file.packed)
    test = data.load(data_set, "test")
    judged = evaluate_file(file)
    assert judged["error"]["decoded"] == error_rate(network, scaling(test.images), test.labels)
    assert evaluate_file(file) == judged


def test_sorting_units_is_signalled_and_can_be_left_out(finished, root):
    _, file = finished
    _, unsorted = compress(JOB, replace(FEW, quantize_epochs=0, sort_units=False), root)
    with open_archive(file.packed) as one, open_archive(unsorted.packed) as other:
        assert one.has_sorted_units
        assert not other.has_sorted_units


def test_without_a_quantiser_the_file_holds_the_network_as_it_is(root, finished):
    run, _ = finished
    _, file = compress(JOB, Compression(quantizer="none", sort_units=False), root)
    pruned, _ = load_model(run.model)
    network = secateur.load(file.packed)
    for name, tensor in network.named_parameters():
        wanted = without_dead_units(pruned).get_parameter(name)
        torch.testing.assert_close(tensor, wanted, rtol=0, atol=0)


def test_a_rate_term_makes_the_file_smaller(root):
    settings = Compression(quantizer="uniform", levels=15, bias_levels=15, quantize_epochs=2)
    _, free = compress(JOB, settings, root)
    _, paid = compress(JOB, replace(settings, lambda_rate=1e-2), root)
    assert paid.packed.stat().st_size < 0.97 * free.packed.stat().st_size


def test_a_file_that_no_run_wrote_is_refused(tmp_path):
    secateur.save(torch.nn.Linear(2, 2), tmp_path / "x.cut")
    with pytest.raises(ValueError, match="does not say how its inputs are scaled"):
        load_file(tmp_path / "x.cut")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda_rate": 1e-6}, "needs quantizer"),
        ({"quantize_lr": -1.0}, "quantize_lr must be"),
        ({"quantize_epochs": -1}, "quantize_epochs must be"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Compression(**settings)


def test_every_preset_knows_how_to_write_a_file():
    settings = {name: compression_preset(name) for name in preset_names()}
    assert settings.pop("paper") == Compression(codec="huffman", sort_units=False)
    assert all(each.codec == "smallest" and each.bias_levels and each.levels < 32 for each in settings.values())


def test_the_command_goes_from_data_to_file_and_evaluate_judges_it(tmp_path, capsys):
    words = ["lenet-300-100", "--data", "digits", "--epochs", "1", "--rho", "0.2", "--levels", "6", "--threads", "1"]
    assert main(["compress", *words, "--quantize-epochs", "1", "--runs", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "32-bit floats would take" in said
    assert "model.cut" in said
    assert main(["evaluate", "--runs", str(tmp_path), "--json"]) == 0
    (judged,) = json.loads(capsys.readouterr().out)["files"].values()
    assert 0 <= judged["error"]["decoded"] <= 100


@pytest.mark.parametrize(
    ("flags", "message"), [(["--codec", "zip"], "codec"), (["--levels", "0"], "levels"), (["--levls", "3"], "--levels")]
)
def test_a_wrong_flag_of_the_command_is_named(tmp_path, capsys, flags, message):
    assert main(["compress", "lenet-300-100", "--data", "digits", "--runs", str(tmp_path), *flags]) == 2
    assert message in capsys.readouterr().err


def test_files_and_the_decay_study_are_published_and_shown(tmp_path, monkeypatch, capsys):
    from secateur.experiments import decay, presets, reproduce

    short = replace(presets.preset("paper", "lenet-300-100"), data="digits", train=JOB.train)
    monkeypatch.setattr(reproduce, "preset", lambda name, network: short)
    monkeypatch.setattr(decay, "preset", lambda name, network: short)
    monkeypatch.setattr(decay, "_LEVELS", (4,))
    places = ["--networks", "lenet-300-100", "--workers", "1", "--results", str(tmp_path / "results")]
    places += ["--runs", str(tmp_path / "runs"), "--seeds", "1", "--json"]
    assert main(["reproduce", "files", *places]) == 0
    (grid,) = json.loads(capsys.readouterr().out)
    assert [row[:2] for row in grid["rows"]][-1] == ["lenet-300-100, secateur paper, huffman", "1"]
    (published,) = (tmp_path / "results/lenet-300-100/paper").glob("file-seed00.json")
    assert json.loads(published.read_text())["test"]["test_images"] == 297
    assert main(["reproduce", "decay", *places]) == 0
    (grid,) = json.loads(capsys.readouterr().out)
    assert [row[0] for row in grid["rows"]] == ["0, 4", "0.0001, 4"]
