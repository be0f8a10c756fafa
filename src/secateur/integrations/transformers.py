"""Pruning in the Hugging Face Trainer: a callback for `transformers.Trainer`."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from secateur.budget import Budget
from secateur.functions.threshold import learned_thresholds
from secateur.integrations.pruned_training import PrunedTraining
from secateur.sibling import LayerRules

try:
    import transformers
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "secateur.integrations.transformers needs Transformers: pip install 'secateur[transformers]'", name=error.name
    ) from error


class PruningCallback(transformers.TrainerCallback):  # type: ignore[misc]  # untyped where it is not installed
    """Prunes a model to a budget while it trains: `Trainer(…, callbacks=[PruningCallback(Budget(ratio=20))])`.

    Thresholds are attached when the Trainer is built, so they are in every checkpoint and resume from it. When `train`
    ends the model is plain again: its own class and keys, with exact zeros, ready for `save_pretrained`. The log has
    "pruning/ratio", "pruning/kept" and "pruning/multiplier".

    The paper's form is `PruningCallback(lambda_t=1e-2)`: call `build_sibling(model)` first, and give the Trainer
    `optimizers=(Adam(parameter_groups(model, lr=…, rho=…)), None)` and `max_grad_norm=0.0`; the penalty is the
    callback's.
    """

    def __init__(
        self,
        budget: Budget | None = None,
        *,
        layers: LayerRules | None = None,
        lambda_t: float | None = None,
        cutoff: float = 1e-3,
    ) -> None:
        self._training = PrunedTraining(budget, layers=layers, lambda_t=lambda_t, cutoff=cutoff)

    def on_init_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        *,
        model: nn.Module,
        **others: object,
    ) -> None:
        """Attach the thresholds, before an optimizer is built and a checkpoint is loaded."""
        self._training.attach(model)

    def on_train_begin(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        *,
        model: nn.Module,
        optimizer: Optimizer,
        **others: object,
    ) -> None:
        """Find out how many steps the training has."""
        if not learned_thresholds(model):
            raise ValueError(
                f"this {type(model).__name__} has no thresholds: give PruningCallback to a new "
                "Trainer(model=…, callbacks=[…]), not to add_callback, and no model_init"
            )
        clip_norm = args.max_grad_norm
        self._training.begin(model, steps=state.max_steps, groups=optimizer.param_groups, clip_norm=clip_norm)

    def on_pre_optimizer_step(self, *_: object, **others: object) -> None:
        """Add the gradient of the penalty, in the paper's form."""
        self._training.before_step()

    def on_optimizer_step(self, *_: object, **others: object) -> None:
        """Move the thresholds; gradients are there until the step ends."""
        self._training.after_step()

    def on_log(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        *,
        logs: dict[str, float],
        **others: object,
    ) -> None:
        """Add the numbers of the pruning to the log of the training, not to that of an evaluation."""
        if "loss" in logs:
            numbers = self._training.numbers()
            logs.update(numbers)
            state.log_history[-1].update(numbers)

    def on_train_end(
        self,
        args: transformers.TrainingArguments,
        state: transformers.TrainerState,
        control: transformers.TrainerControl,
        *,
        model: nn.Module,
        **others: object,
    ) -> None:
        """Make the model plain, after the last checkpoint is written."""
        self._training.cut(model)
