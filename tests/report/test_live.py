"""A run while it goes on: on a terminal of 80 columns, in TensorBoard, in the browser."""

import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from rich.console import Console
from torch import nn

from secateur.experiments.directory import RunDirectory, newest_begun
from secateur.report.page.live import serve, state_of, with_updates
from secateur.report.terminal import Watcher, epoch_line
from secateur.results import RunError
from secateur.sibling import build_sibling
from secateur.train.observers import Observers, Silent

TINY = ["lenet-300-100", "--data", "digits", "--epochs", "2", "--fine-tune-epochs", "1", "--rho", "0.2"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


# On the terminal


def line(layers, phase="fine-tune"):
    thresholds = {f"layer{number}.weight": 0.1 + number / 1000 for number in range(layers)}
    return {"phase": phase, "epoch": 1, "epochs": 9, "error": 12.34, "ratio": 1234.5, "thresholds": thresholds}


@pytest.mark.parametrize("layers", [1, 4, 5, 54])
def test_a_line_of_progress_fits_80_columns_and_says_error_and_ratio(layers):
    screen = io.StringIO()
    with Watcher(Console(file=screen, width=80, force_terminal=True, _environ={})) as watcher:
        watcher.step("fine-tune", 1, 100)
        watcher.epoch(line(layers))
        watcher.step("fine-tune", 2, 100)
    shown = re.split(r"[\r\n]+", ESCAPES.sub("", screen.getvalue()))
    assert max(map(len, shown)) <= 80
    assert any("12.34 %" in each and "1234.5×" in each and "0.100" in each for each in shown)


def test_few_thresholds_are_shown_one_by_one_and_many_as_their_range():
    assert epoch_line(line(3)).endswith("t 0.100 0.101 0.102")
    assert epoch_line(line(54)).endswith("t 0.100 … 0.153")


def test_a_training_stays_within_a_terminal_of_80_columns(tmp_path):
    fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    words = [sys.executable, "-m", "secateur", "prune", "lenet-5", *TINY[1:], "--threads", "1"]
    without_size = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        words, stdout=theirs, stderr=theirs, stdin=theirs, cwd=tmp_path, env={**without_size, "TERM": "xterm"}
    )
    os.close(theirs)
    said = b""
    try:
        while chunk := os.read(ours, 1 << 16):
            said += chunk
    except OSError:  # the other end has closed
        pass
    assert process.wait(timeout=60) == 0
    lines = re.split(r"[\r\n]+", ESCAPES.sub("", said.decode()))
    # Paths are printed in one piece, to be copied, and notes too; everything else keeps to the width.
    assert [line for line in lines if len(line) > 80 and "runs/" not in line and not line.startswith("Note: ")] == []
    assert any(line.startswith("train") and "error" in line for line in lines)


# In TensorBoard


class Seen(Silent):
    """An observer that notes what it is told."""

    def __init__(self):
        self.told = []

    def step(self, stage, done, total):
        self.told.append("step")

    def epoch(self, line):
        self.told.append("epoch")

    def network(self, line, model):
        self.told.append(model)


def test_several_observers_all_see_everything():
    first, second, model = Seen(), Seen(), nn.Linear(2, 2)
    both = Observers((first, second))
    both.step("train", 1, 2)
    both.epoch({})
    both.network({}, model)
    assert first.told == second.told == ["step", "epoch", model]


def events(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(folder), size_guidance={"histograms": 0, "scalars": 0})
    found.Reload()
    return found


needs_tensorboard = pytest.mark.skipif(
    subprocess.run([sys.executable, "-c", "import tensorboard"], capture_output=True).returncode != 0,
    reason="tensorboard is not installed: pip install 'secateur[tensorboard]'",
)


@needs_tensorboard
@pytest.mark.parametrize("verb", ["prune", "compress"])
def test_a_run_leaves_its_numbers_and_histograms_for_tensorboard(verb, tmp_path, command):
    assert command(verb, *TINY, "--tensorboard", "--json", "--runs", str(tmp_path))[0] == 0
    directory = newest_begun(tmp_path)
    log = [json.loads(line) for line in directory.journal("train").log.read_text().splitlines()]
    train = events(directory.events / "train")
    assert [round(event.value, 4) for event in train.Scalars("error")] == [round(each["error"], 4) for each in log]
    assert [event.step for event in train.Scalars("thresholds/fc1.weight")] == [1, 2]
    assert {"loss", "ratio", "kept_per_layer/fc3.weight"} <= set(train.Tags()["scalars"])
    assert "epochs" not in train.Tags()["scalars"]
    raw, read = (train.Histograms(f"{tag}/fc1.weight")[-1].histogram_value for tag in ("weights", "weights as read"))
    assert raw.num == read.num == 235_200
    assert read.sum_squares < raw.sum_squares  # θ presses towards zero
    assert "weights/fc1.weight" in events(directory.events / "fine-tune").Tags()["histograms"]
    assert (directory.events / "quantize").exists() == (verb == "compress")


@needs_tensorboard
def test_epochs_that_are_repeated_after_an_interruption_count_once(tmp_path):
    from secateur.report.tensorboard import TensorBoard

    model = build_sibling(nn.Sequential(nn.Linear(3, 2)))
    for first in (1, 2):  # the second process repeats the epoch after its checkpoint
        board = TensorBoard(tmp_path)
        for epoch in range(first, 4):
            log_line = {"phase": "train", "epoch": epoch, "epochs": 3, "error": float(10 * first + epoch)}
            board.step("a stage", epoch, 3)
            board.epoch(log_line)
            board.network(log_line, model)
        board.close()
        time.sleep(1.1)  # event files are told apart by the second they were begun in
    found = events(tmp_path / "a stage")
    assert [(event.step, event.value) for event in found.Scalars("error")] == [(1, 11), (2, 22), (3, 23)]


def test_without_tensorboard_the_flag_says_what_to_install_before_anything_is_trained(tmp_path, monkeypatch, command):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    code, _, complained = command("prune", *TINY, "--tensorboard", "--runs", str(tmp_path))
    assert code == 1
    assert complained == "secateur: --tensorboard needs tensorboard: pip install 'secateur[tensorboard]'\n"
    assert list(tmp_path.iterdir()) == []


# In the browser


@pytest.fixture
def begun(tmp_path):
    """A run of which only the settings are there."""
    directory = RunDirectory(tmp_path / "a-run")
    directory.path.mkdir()
    directory.job.write_text("{}")
    return directory


@contextmanager
def served(directory, render):
    with serve(directory, render=render) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def get(address, **headers):
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_the_page_is_served_and_drawn_again_only_when_the_run_has_moved_on(begun):
    drawn = []

    def render(runs):
        drawn.append(runs)
        return f"<html><body>page {len(drawn)}</body></html>"

    with served(begun, render) as address:
        assert "page 1" in get(f"{address}/")
        before = get(f"{address}/state")
        assert before in get(f"{address}/")
        assert len(drawn) == 1
        begun.journal("train").log.write_text("{}\n")
        assert get(f"{address}/state") != before
        assert "page 2" in get(f"{address}/")
    assert drawn == [[begun], [begun]]


def test_a_run_without_a_page_yet_is_waited_for(begun):
    def render(runs):
        raise RunError("nothing but <settings>: `secateur run`")

    with served(begun, render) as address:
        page = get(f"{address}/")
    assert "nothing but &lt;settings&gt;: <code>secateur run</code>" in page
    assert "location.reload" in page


def test_only_this_machine_is_answered_and_only_what_there_is(begun):
    with served(begun, lambda runs: "<body></body>") as address:
        for path, host, status in (("/", "evil.example:80", 403), ("/", "", 403), ("/../job.json", "localhost", 404)):
            with pytest.raises(urllib.error.HTTPError) as refused:
                get(f"{address}{path}", Host=host)
            refused.value.close()
            assert refused.value.code == status
        assert get(f"{address}/", Host="localhost:1234")


def test_the_server_listens_on_this_machine_alone(begun):
    with serve(begun, render=lambda runs: "") as server:
        assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_a_sentence(begun):
    with serve(begun, render=lambda runs: "") as first, pytest.raises(RunError, match="--port 0 finds a free one"):
        serve(begun, first.server_port, render=lambda runs: "")


def test_the_script_stands_at_the_end_of_the_body():
    page = with_updates("<html><body>text</body></html>", "abc")
    assert page.index("text") < page.index('known = "abc"') < page.index("</body>")
    assert 'known = "abc"' in with_updates("no body", "abc")


def test_the_state_follows_files_that_count(begun):
    states = [state_of(begun)]
    (begun.path / "tensorboard").mkdir()
    for name in ("result.json", "tensorboard/events"):
        (begun.path / name).write_text("{}")
        states.append(state_of(begun))
    assert len(set(states)) == 3
    for name in (".half.partial", "report.html"):  # half-written files, and what is made of the run
        (begun.path / name).write_text("x")
    assert state_of(begun) == states[-1]


def test_the_newest_run_is_the_one_that_went_on_last(tmp_path):
    for number, name in enumerate(("one", "three", "two")):
        directory = RunDirectory(tmp_path / name)
        directory.path.mkdir()
        directory.job.write_text("{}")
        os.utime(directory.path, (number, number))
    (tmp_path / "no-run").mkdir()
    assert newest_begun(tmp_path).path.name == "two"


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nowhere"], 1, "nowhere does not exist: give the directory of a run, begun or finished"),
        (["--runs", "nowhere"], 1, "there is no run in nowhere: start one with secateur compress lenet-300-100"),
        (["--port", "-1"], 2, "port must be ≥ 0, got -1"),
        (["--port", "70000"], 2, "port must be ≤ 65,535, got 70000"),
    ],
)
def test_what_cannot_be_watched_is_a_sentence(words, code, sentence, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    assert command("watch", *words) == (code, "", f"secateur: {sentence}\n")


def test_watching_ends_quietly_with_an_interruption(begun, monkeypatch, command):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr("secateur.report.page.render.render_page", lambda runs: "")
    monkeypatch.setattr("http.server.ThreadingHTTPServer.serve_forever", interrupt)
    code, printed, _ = command("watch", str(begun.path), "--port", "0")
    assert code == 0
    assert re.fullmatch(rf"{begun.path} at http://127\.0\.0\.1:\d+/ until Ctrl-C\n", printed)


def test_looking_at_a_network_changes_nothing_that_it_computes(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install 'secateur[tensorboard]'")
    from secateur.report.tensorboard import TensorBoard

    model = build_sibling(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    board = TensorBoard(Path(tmp_path))
    board.network({"phase": "train", "epoch": 1}, model)
    board.close()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
