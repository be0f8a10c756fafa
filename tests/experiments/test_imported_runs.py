"""A network of another package goes from training on a folder to file to answers, and is imported only when trusted."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import sentence

import secateur
from secateur.budget import Budget
from secateur.cli.training import Compress, Prune
from secateur.encode import open_archive
from secateur.experiments.evaluate import evaluate
from secateur.experiments.models import load_model, load_stage
from secateur.experiments.presets import preset, run_name
from secateur.experiments.runner import run
from secateur.experiments.subject import subject
from secateur.job import InputConfig, Job
from secateur.methods import Budgeted
from secateur.networks import NetworkError
from secateur.report.page import write_page
from secateur.train.recipe import Recipe

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

# It leaves a file when it is imported.
MODULE = """
from pathlib import Path

from torch import nn

Path(__file__).with_name("imported").touch()


def cnn(classes):
    return nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(classes))


def deep(classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))


def ten():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 12 * 12, 10))


def shaped(classes, input_shape=(1, 6, 6)):
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))
    model.input_shape = input_shape
    return model
"""


def draw(folder, size=(12, 12), number=24):
    """Pictures of three classes: bright on the left, in the middle, or on the right."""
    noise = np.random.default_rng(0)
    for place, name in enumerate(("left", "middle", "right")):
        (folder / name).mkdir(parents=True)
        for index in range(number):
            pixels = noise.integers(0, 60, (*size, 3), dtype=np.uint8)
            pixels[:, size[1] * place // 3 : size[1] * (place + 1) // 3] += 180
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A directory with the module, a folder of pictures, and a finished run."""
    home = tmp_path_factory.mktemp("home")
    (home / "mynets.py").write_text(MODULE)
    photos = draw(home / "photos")
    torch.set_num_threads(1)
    job = replace(
        preset("general", "mynets:cnn", data=str(photos)),
        methods=(Budgeted(budget=Budget(ratio=4)),),
        recipe=Recipe(epochs=4, batch_size=8, lr=5e-3),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(home)
        run(job, home / "runs", trust=["mynets"])
    return home


@pytest.fixture(autouse=True)
def imported(home, monkeypatch):
    """Where the module leaves a file; it can be imported here, and has not been."""
    sys.modules.pop("mynets", None)
    (home / "imported").unlink(missing_ok=True)
    monkeypatch.syspath_prepend(home)
    monkeypatch.chdir(home)
    return home / "imported"


@pytest.fixture
def finished(home):
    from secateur.experiments.directory import newest_finished

    return newest_finished(home / "runs")


def test_the_file_says_how_the_network_is_built_and_what_it_reads(finished, imported):
    with open_archive(finished.file) as archive:
        assert (archive.architecture.name, archive.architecture.arguments) == ("mynets:cnn", {"classes": 3})
        assert archive.metadata["input_shape"] == "1 12 12"
        assert archive.metadata["classes"] == "left\nmiddle\nright"
    assert finished.read_result().error < 20
    assert not imported.exists()


def test_a_run_is_named_without_a_colon(finished):
    assert finished.path.name.startswith("mynets.cnn-photos-general-budget-")
    assert run_name(preset("paper", "a.b:c")) == "a.b.c-mnist-paper-manessi2018-seed0"


def test_the_networks_of_a_run_are_built_when_they_are_trusted(finished, imported):
    for read in (load_model, secateur.load):
        with pytest.raises(NetworkError, match=r'names mynets:cnn.* nothing was imported: .*trust=\["mynets"\]'):
            read(finished.file if read is secateur.load else finished.model)
    with pytest.raises(NetworkError, match="nothing was imported"):
        load_stage(finished)
    assert not imported.exists()
    x = torch.rand(2, 1, 12, 12)
    model = load_model(finished.model, ["mynets"])
    torch.testing.assert_close(secateur.load(finished.file, trust=["mynets"])(x), model(x))
    assert load_stage(finished, trust=["mynets"])[3].out_features == 3


def test_a_run_of_an_untrusted_network_is_not_begun(home, imported, tmp_path):
    job = preset("general", "mynets:cnn", data=str(home / "photos"))
    with pytest.raises(NetworkError, match="nothing was imported"):
        run(job, tmp_path / "runs")
    assert not imported.exists()
    assert not (tmp_path / "runs").exists()


READING = ["predict {} photos/left/0.png", "evaluate {}", "bench {}", "export {} model.onnx", "verify {} --data photos"]


@pytest.mark.parametrize("words", READING)
def test_a_command_that_builds_the_network_imports_nothing_unless_it_is_trusted(command, finished, imported, words):
    code, printed, complained = command(*words.format(finished.path).split())
    assert (code, printed) == (1, "")
    said = sentence(complained)
    assert "names mynets:cnn, which is not one of our networks, and nothing was imported" in said
    assert "--trust mynets" in said
    assert not imported.exists()
    assert not Path("model.onnx").exists()


@pytest.mark.parametrize("words", ["inspect {}", "verify {}", "sizes {}", "report {}", "export {} model.pt"])
def test_the_other_commands_need_no_trust_and_import_nothing(command, finished, imported, words):
    code, printed, complained = command(*words.format(finished.path).split())
    assert (code, complained) == (0, "")
    assert printed
    assert not imported.exists()


def test_a_page_says_what_to_trust_and_imports_nothing(finished, imported):
    write_page([finished], finished.page)  # `watch` serves the same page
    assert "--trust mynets" in finished.page.read_text()
    assert not imported.exists()


def test_a_trusted_run_is_evaluated_and_benchmarked(command, finished):
    assert evaluate(finished, trust=["mynets"]).error < 20
    finished.test.unlink()
    words = ("--trust", "mynets", "--repeats", "6", "--engines", "eager", "--json")
    code, printed, _ = command("bench", str(finished.path), *words)
    assert code == 0
    assert json.loads(printed)["network"] == "mynets:cnn"
    found = subject(str(finished.file), trust=["mynets"])
    assert (found.network, found.sample_shape) == ("mynets:cnn", (1, 12, 12))


def test_a_trusted_file_is_exported_with_inputs_of_its_shape(command, finished, tmp_path, monkeypatch):
    def pretend(model, example, target, *, any_batch):
        assert model(example).shape == (4, 3)
        assert example.shape[1:] == (1, 12, 12)
        target.write_bytes(b"onnx")
        return 0.0

    monkeypatch.setattr("secateur.integrations.export.export_onnx", pretend)
    code, printed, complained = command("export", str(finished.file), str(tmp_path / "m.onnx"), "--trust", "mynets")
    assert (code, complained) == (0, "")
    assert "differ from torch's by" in printed


def test_a_folder_for_the_hub_says_what_to_trust(command, finished, imported, tmp_path):
    assert command("export", str(finished.path), str(tmp_path / "hub"), "--hub")[0] == 0
    assert '"model.cut"), trust=["mynets"])' in (tmp_path / "hub" / "README.md").read_text()
    assert not imported.exists()


def test_pictures_are_classified_in_a_fresh_process_by_a_module_of_the_current_directory(finished, home):
    program = "import sys; sys.path.remove(''); from secateur.cli import main; sys.exit(main())"  # as the script does
    pictures = ["photos/left/0.png", "photos/right/1.png"]
    words = ["predict", str(finished.file), *pictures, "--top", "1", "--trust", "mynets"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=home, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["left", "right"]


# What is typed


def test_a_network_is_pruned_by_its_import_path(command, home, tmp_path):
    words = "prune mynets:deep --data photos --ratio 2 --epochs 2 --batch-size 8 --lr 0.01 --input-shape 3 6 6 --json"
    code, printed, complained = command(*words.split(), "--runs", str(tmp_path / "runs"))
    assert code == 0, complained
    result = json.loads(printed)
    assert (result["job"]["preset"], result["job"]["inputs"]["input_shape"]) == ("general", [3, 6, 6])
    assert (result["weights"], result["kept"]) == (3 * 108, 3 * 108 / 2)
    assert "mynets.deep-photos-general-dense" in complained  # the reference


def shape_of(*words):
    return Prune.parsed([*words, "--data", "photos"]).job().inputs.input_shape


def test_the_input_shape_is_the_flags_or_the_networks_or_that_of_the_pictures(home):
    assert shape_of("mynets:cnn") == (1, 12, 12)  # one channel, as its convolution takes
    assert shape_of("mynets:deep") == (3, 12, 12)
    assert shape_of("mynets:shaped") == (1, 6, 6)
    assert shape_of("mynets:shaped", "--input-shape", "3", "5", "4") == (3, 5, 4)
    assert shape_of("lenet-5") is None
    assert shape_of("lenet-5", "--input-shape", "3", "20", "24") == (3, 20, 24)


def test_general_settings_are_chosen_for_networks_that_no_preset_knows(home):
    job = Compress.parsed(["mynets:cnn", "--data", "photos"]).job()
    assert job.preset == "general"
    assert (job.label, job.recipe) == ("budget+few-values", Recipe(epochs=30, schedule="cosine"))
    assert Compress.parsed(["lenet-5"]).job().preset == "paper"
    assert Compress.parsed(["resnet-20", "--data", "cifar10"]).job().preset == "general"
    assert Prune.parsed(["mynets:cnn", "--data", "photos", "--preset", "paper"]).job().label == "manessi2018"
    job = Prune.parsed(["--seed", "3", "mynets:cnn", "--data", "photos", "--sparsity", "0.5"]).job()
    assert (job.seed, job.methods) == (3, (Budgeted(budget=Budget(sparsity=0.5)),))


def test_the_help_of_an_imported_network_has_the_general_settings_and_imports_nothing(command, imported):
    code, printed, _ = command("prune", "mynets:cnn", "--help")
    assert code == 0
    assert "(default: general)" in printed
    assert "general is the default for" in " ".join(printed.replace("│", " ").split())
    assert not imported.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "prune mynets:ten --data photos",
            "mynets:ten returns a tensor of shape (2, 10) for two images of 3×12×12",
        ),
        ("prune mynets:cnn --data photos --input-shape 3 12 12", "mynets:cnn does not run on images of 3×12×12"),
        ("prune mynets:cnn --data photos --input-shape 3 0 12", "height must be a whole number ≥ 1, got 0"),
        ("prune mynets:cnn --data mixed", "mynets:cnn has no attribute input_shape, and the pictures in "),
        (
            "prune mynets:cnn --data photos --preset quick",
            'preset "quick" has settings for lenet-300-100, lenet-5',
        ),
        ("compress mynets:cn --data photos", 'there is no "cn" in the module mynets: did you mean "cnn"?'),
        ("compress nowhere:cnn --data photos", 'nowhere:cnn: there is no module "nowhere" here'),
        ("summary mynets:cnn", "mynets:cnn needs classes: add --classes"),
        (
            "summary mynets:cnn --classes 3",
            'mynets:cnn: "3.weight" has no shape before the first input: add ',
        ),
        ("bench mynets:cnn.cut", "mynets:cnn.cut: No such file or directory"),
        ("bench lenet-5 --trust mynets:cnn", 'trust takes names of modules such as "package.module", got "mynets:cnn"'),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_training(command, home, tmp_path, words, said):
    if not (home / "mixed").exists():
        draw(home / "mixed", number=2)
        Image.new("RGB", (9, 12)).save(home / "mixed" / "left" / "other.png")
        Image.new("RGB", (9, 12)).save(home / "mixed" / "left" / "another.png")
    code, printed, complained = command(*words.split(), *(("--runs", str(tmp_path)) if words[:4] != "summ" else ()))
    assert code == (1 if "No such file" in said else 2)
    assert printed == ""
    assert sentence(complained).startswith(said)
    assert list(tmp_path.iterdir()) == []


def test_a_network_is_summarised_and_benchmarked_by_its_import_path(command):
    code, printed, _ = command("summary", "mynets:cnn", "--classes", "3", "--input-shape", "1", "4", "4", "--json")
    assert code == 0
    assert json.loads(printed)["weights"] == 72 + 3 * 8 * 16
    found = subject("mynets:shaped", classes=3, trust=["mynets"])
    assert (found.network, found.density, found.sample_shape) == ("mynets:shaped", 0.1, (1, 6, 6))
    assert (found.model[1].weight == 0).any()
    with pytest.raises(ValueError, match="mynets:deep needs classes"):
        subject("mynets:deep", trust=["mynets"])
    with pytest.raises(ValueError, match="mynets:ten has no attribute input_shape: add --input-shape"):
        subject("mynets:ten", trust=["mynets"])


def test_an_old_job_has_no_input_shape():
    content = Job(network="lenet-5").to_json()
    del content["inputs"]["input_shape"]
    assert Job.from_json(content) == Job(network="lenet-5")
    shaped = replace(Job(network="lenet-5"), inputs=InputConfig(input_shape=(3, 20, 24)))
    assert Job.from_json(json.loads(json.dumps(shaped.to_json()))) == shaped
