"""Pruning in Lightning: a callback for `lightning.Trainer`."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from secateur.budget import Budget
from secateur.integrations.pruned_training import PrunedTraining
from secateur.sibling import LayerRules

try:
    import lightning
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "secateur.integrations.lightning needs Lightning: pip install 'secateur[lightning]'", name=error.name
    ) from error

_THRESHOLDS = "secateur"  # where a checkpoint keeps them


class Pruning(lightning.Callback):  # type: ignore[misc]  # untyped where Lightning is not installed
    """Prunes a LightningModule to a budget while it trains: `Trainer(callbacks=[Pruning(Budget(ratio=20))])`.

    Thresholds are attached when `fit` sets up. A checkpoint holds the module as it would be cut, which
    `load_from_checkpoint` and `test` read, and what `fit` needs to resume. When `fit` ends the module is plain again:
    its own class and keys, with exact zeros. The trainer logs "pruning/ratio", "pruning/kept" and
    "pruning/multiplier".

    The paper's form is `Pruning(lambda_t=1e-2)`: the module calls `build_sibling` in its constructor and
    `parameter_groups` in `configure_optimizers`; the penalty is the callback's.
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
        self._steps = 0

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Attach the thresholds, before optimizers are built and a checkpoint is loaded."""
        if stage == "fit":
            self._training.attach(pl_module)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Find out how many steps the training has."""
        if len(trainer.optimizers) != 1 or not pl_module.automatic_optimization:
            raise ValueError(
                "Pruning needs automatic optimization with one optimizer: otherwise call secateur.Pruner.step after "
                "the step of your optimizer"
            )
        self._training.begin(
            pl_module,
            steps=trainer.estimated_stepping_batches,
            groups=trainer.optimizers[0].param_groups,
            clip_norm=trainer.gradient_clip_val,
        )
        self._steps = trainer.global_step

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, optimizer: Optimizer
    ) -> None:
        """Add the gradient of the penalty, in the paper's form."""
        self._training.before_step()

    def on_train_batch_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, *batch: object, **more: object
    ) -> None:
        """Move the thresholds if the optimizer has made a step; gradients are there until the next batch."""
        if trainer.global_step == self._steps:  # gradients are being accumulated
            return
        self._steps = trainer.global_step
        self._training.after_step()
        if self._steps % trainer.log_every_n_steps == 0:
            pl_module.log_dict(self._training.numbers())

    def on_save_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let the checkpoint hold the plain module, which is what is tested, and the thresholds next to it."""
        checkpoint[_THRESHOLDS] = self._training.take_thresholds(pl_module, checkpoint["state_dict"])

    def on_load_checkpoint(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Continue with the thresholds of a checkpoint, and with the weights below them."""
        pl_module.load_state_dict(checkpoint[_THRESHOLDS], strict=False)

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        """Make the module plain, after the last checkpoint is written."""
        if stage == "fit":
            self._training.cut(pl_module)
