"""The callback for the Hugging Face Trainer, with the real package; without it these tests are skipped."""

import pytest
import torch

import secateur
from secateur import Budget
from secateur.functions.solved_threshold import solved_thresholds
from secateur.integrations.onnx import export_onnx
from secateur.measure import count

transformers = pytest.importorskip("transformers", reason="needs Transformers: make frameworks")
from secateur.integrations.transformers import PruningCallback  # noqa: E402  (after the skip)

LENGTH, STEPS = 9, 24


class Killed(Exception):
    """What ends a training in the middle."""


class KillAt(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **others):
        if state.global_step == self.step:
            raise Killed


def bert(seed=0, **options):
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        **options,
    )
    return transformers.BertForSequenceClassification(config)


def sentences(number=48):
    tokens = torch.randint(0, 8, (number, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": (row.sum() > 3.5 * LENGTH).long()} for row in tokens]


def trainer(model, folder, *callbacks, optimizers=(None, None), **options):
    arguments = {"max_steps": STEPS, "learning_rate": 1e-2, "logging_steps": 4, "save_steps": 10, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        **arguments,
    )
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=sentences(), callbacks=list(callbacks), optimizers=optimizers
    )


def trained(model, folder, *callbacks, resume=None, **options):
    done = trainer(model, folder, *callbacks, **options)
    done.train(resume_from_checkpoint=resume)
    return done


def same_bits(one, other):
    one, other = one.state_dict(), other.state_dict()
    return list(one) == list(other) and all(torch.equal(one[key], other[key]) for key in one)


def test_the_model_is_plain_again_and_meets_its_budget(tmp_path):
    model = bert()
    kind, keys = type(model), list(model.state_dict())
    trained(model, tmp_path, PruningCallback(Budget(ratio=5)), save_strategy="no")
    totals = count(model).prunable
    assert totals.kept == totals.weights // 5
    assert (type(model), list(model.state_dict())) == (kind, keys)
    assert not any(hasattr(module, "parametrizations") for module in model.modules())


def test_a_saved_model_is_read_back_with_its_zeros(tmp_path):
    model = bert()
    trained(model, tmp_path, PruningCallback(Budget(ratio=5)), save_strategy="no").save_model(tmp_path / "saved")
    assert same_bits(transformers.BertForSequenceClassification.from_pretrained(tmp_path / "saved"), model)


@pytest.mark.parametrize("budget", [Budget(ratio=5), Budget(bytes=4000)], ids=["ratio", "bytes"])
def test_a_killed_training_resumes_to_the_same_bits(tmp_path, budget):
    whole, resumed = bert(), bert(seed=7)
    trained(whole, tmp_path / "whole", PruningCallback(budget))
    with pytest.raises(Killed):
        trained(bert(), tmp_path / "killed", PruningCallback(budget), KillAt(13))
    trained(resumed, tmp_path / "killed", PruningCallback(budget), resume=True)
    assert same_bits(resumed, whole)
    assert count(whole).prunable.ratio > 4.9


def test_thresholds_move_once_for_a_step_of_the_optimizer(tmp_path):
    seen = []

    class Spy(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, *, model, **others):
            seen.append(int(next(iter(solved_thresholds(model).values())).counts[0]))

    options = {"max_steps": 6, "gradient_accumulation_steps": 2, "save_strategy": "no"}
    trained(bert(), tmp_path, PruningCallback(Budget(ratio=5)), Spy(), **options)
    assert seen == [1, 2, 3, 4, 5, 6]


def test_the_log_has_the_ratio_the_weights_kept_and_the_multiplier(tmp_path):
    model = bert()
    done = trained(model, tmp_path, PruningCallback(Budget(ratio=5)), save_strategy="no")
    lines = [line for line in done.state.log_history if "loss" in line]
    assert [line["step"] for line in lines] == [4, 8, 12, 16, 20, 24]
    assert lines[-1]["pruning/kept"] == count(model).prunable.kept
    assert lines[-1]["pruning/ratio"] == pytest.approx(5, rel=1e-3)
    assert lines[-1]["pruning/multiplier"] != 0
    assert lines[0]["pruning/ratio"] < lines[2]["pruning/ratio"]


def sibling_and_optimizer(seed=0):
    model = bert(seed, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    secateur.build_sibling(model, secateur.SiblingConfig(alpha=1000))
    return model, torch.optim.Adam(secateur.parameter_groups(model, lr=1e-3, rho=0.5, lambda_wd=1e-4))


def paper_form(folder, seed=0, callbacks=(), **options):
    model, optimizer = sibling_and_optimizer(seed)
    options = {"optimizers": (optimizer, None), "max_grad_norm": 0.0, **options}
    trained(model, folder, PruningCallback(lambda_t=1e-2), *callbacks, **options)
    return model


def test_the_papers_form_takes_the_steps_of_the_same_loop_by_hand(tmp_path):
    class Recorded(transformers.TrainerCallback):
        def on_train_end(self, args, state, control, *, model, **others):
            self.state = {name: value.clone() for name, value in model.state_dict().items()}

    recorded = Recorded()
    model, optimizer = sibling_and_optimizer()
    rows = sentences(8)
    batch = {key: torch.stack([row[key] for row in rows]) for key in rows[0]}
    options = {"max_grad_norm": 0.0, "save_strategy": "no", "max_steps": 6, "lr_scheduler_type": "constant"}
    pruning = PruningCallback(lambda_t=1e-2)
    done = trainer(model, tmp_path, recorded, pruning, optimizers=(optimizer, None), **options)
    done.train_dataset = rows
    done.train()

    other, optimizer = sibling_and_optimizer()
    for _ in range(6):
        optimizer.zero_grad()
        (other(**batch).loss + secateur.penalty(other, 1e-2)).backward()
        optimizer.step()
    for name, value in other.state_dict().items():
        torch.testing.assert_close(recorded.state[name], value, rtol=1e-4, atol=1e-5)


def test_the_papers_form_resumes_to_the_same_bits_and_ends_plain(tmp_path):
    whole = paper_form(tmp_path / "whole")
    with pytest.raises(Killed):
        paper_form(tmp_path / "killed", callbacks=[KillAt(13)])
    resumed = paper_form(tmp_path / "killed", seed=7, resume=True)
    assert same_bits(resumed, whole)
    assert list(whole.state_dict()) == list(bert().state_dict())
    assert count(whole).prunable.ratio > 1.1


def test_an_optimizer_that_trains_thresholds_like_weights_is_refused(tmp_path):
    model = secateur.build_sibling(bert())
    with pytest.raises(ValueError, match=r"like a weight: build the optimizer from secateur\.parameter_groups"):
        trained(model, tmp_path, PruningCallback(lambda_t=1e-2), max_grad_norm=0.0)


def test_clipping_thresholds_with_the_weights_is_refused_in_the_papers_form(tmp_path):
    with pytest.raises(ValueError, match=r"clipped at 1, those of thresholds too.*turn clipping off"):
        paper_form(tmp_path, max_grad_norm=1.0)


def test_a_callback_that_comes_too_late_is_refused(tmp_path):
    late = trainer(bert(), tmp_path)
    late.add_callback(PruningCallback(Budget(ratio=5)))
    with pytest.raises(ValueError, match="has no thresholds: give PruningCallback to a new Trainer"):
        late.train()


def test_a_transformer_is_exported_to_onnx_with_inputs_by_name(tmp_path):
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install 'secateur[onnx]'")
    inputs = {"input_ids": torch.randint(0, 8, (3, LENGTH)), "attention_mask": torch.ones(3, LENGTH, dtype=torch.int64)}
    assert export_onnx(bert(), inputs, tmp_path / "model.onnx") <= 1e-4
    assert (tmp_path / "model.onnx").stat().st_size > 4 * sum(p.numel() for p in bert().parameters())


def test_a_network_of_an_earlier_step_is_cut_with_a_warning(tmp_path):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **others):
            control.should_training_stop = state.global_step == 6

    with pytest.warns(UserWarning, match="that of step 6 of 24: .* weights are kept, and .* asks for"):
        trained(bert(), tmp_path, PruningCallback(Budget(ratio=5)), Stop(), save_strategy="no")
