"""What is trained in the study of AlexNet's features, and where its results are published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from secateur.budget import Budget
from secateur.experiments.studies.published import result_path
from secateur.job import InputConfig, Job
from secateur.methods import Budgeted, Dense, FewValues, Han2015, Method
from secateur.networks import Shape
from secateur.train.recipe import Recipe

NETWORK, LAYERS = "alexnet-torchvision", "alexnet-torchvision-classifier"

# Half an hour of one core each with 100,000 pictures, in bf16.
_SGD = Recipe(epochs=6, batch_size=256, optimizer="sgd", lr=2e-2, schedule="cosine", clip_norm=5.0, precision="bf16")
_WHOLE = replace(_SGD, epochs=1, batch_size=64, lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class FeatureStudy:
    """What is trained on which pictures, how far it is pruned, and for how long."""

    data: str = "tiny-imagenet"
    ratios: tuple[float, ...] = (25, 40, 80)  # of the linear layers; the whole network starts from the first
    further_epochs: int = 3  # from one ratio to the next
    scratch_ratio: float = 40.0  # to which random linear layers are pruned, as in the paper
    rival_ratio: float = 25.0  # to which Deep Compression prunes the same layers
    whole_ratio: float = 20.0  # convolutions included
    recipe: Recipe = _SGD
    whole_recipe: Recipe = _WHOLE
    seed: int = 0
    input_shape: Shape = (3, 224, 224)

    def classifier_job(self, *methods: Method) -> Job:
        """Return the training of the linear layers by methods."""
        return Job(
            network=LAYERS, data=self.data, preset="general", methods=methods, recipe=self.recipe, seed=self.seed
        )

    @property
    def dense_job(self) -> Job:
        """The linear layers with all their weights."""
        return self.classifier_job(Dense())

    @property
    def longer_job(self) -> Job:
        """The dense layers again, for as many epochs as the dense and the pruned ones of the first ratio together."""
        return replace(self.dense_job, recipe=replace(self.recipe, epochs=2 * self.recipe.epochs))

    @property
    def scratch_job(self) -> Job:
        """The linear layers pruned from random weights on."""
        return self.classifier_job(Budgeted(budget=Budget(ratio=self.scratch_ratio)))

    def pruned_job(self, ratio: float) -> Job:
        """Return the pruning of the dense linear layers, for as many epochs again, and on from ratio to ratio."""
        first, *further = self.ratios[: self.ratios.index(ratio) + 1]
        steps = [Budgeted(budget=Budget(ratio=one), prune_epochs=self.further_epochs) for one in further]
        return self.classifier_job(Dense(), Budgeted(budget=Budget(ratio=first)), *steps)

    @property
    def rival_job(self) -> Job:
        """The same layers by Deep Compression: 5 bits a weight, as it is published for linear layers.

        It prunes the dense layers, retrains them for as many epochs again, and trains their shared values for one more.
        """
        lr = self.recipe.lr / 10  # as published
        prune = Han2015(ratio=self.rival_ratio, rounds=2, retrain_epochs=self.recipe.epochs // 2, retrain_lr=lr)
        return self.classifier_job(prune, FewValues(levels=32, quantize_epochs=1, quantize_lr=1e-4))

    def whole_job(self, start: Path) -> Job:
        """Return the training that prunes the whole network further, from the weights in a file."""
        budget = Budgeted(budget=Budget(ratio=self.whole_ratio), fine_tune=0.0)
        return replace(self.dense_whole_job(start), methods=(budget,))

    def dense_whole_job(self, start: Path) -> Job:
        """Return the same training without pruning, from the weights of a dense network."""
        return Job(
            network=NETWORK,
            data=self.data,
            start=str(start),
            preset="general",
            methods=(Dense(),),
            recipe=self.whole_recipe,
            inputs=InputConfig(input_shape=self.input_shape),
            seed=self.seed,
        )


def classifier_path(results: Path, study: FeatureStudy, job: Job) -> Path:
    """Return the path of the published result of linear layers; their ratio is a part of the name."""
    variants = [f"{method.budget.ratio:g}x" for method in job.methods if isinstance(method, Budgeted)]
    variants = variants or (["longer"] if job == study.longer_job else [""])
    return result_path(results, job, variant=variants[-1])


def whole_path(results: Path, job: Job) -> Path:
    """Return the path of the published result of the whole network."""
    return result_path(results, job, variant="whole")


def feature_paths(results: Path, study: FeatureStudy) -> dict[str, Path]:
    """Return where the results of the study are published, by what was trained."""
    path = partial(classifier_path, results, study)
    return {
        "fc6–fc8, dense": path(study.dense_job),
        "fc6–fc8, dense, twice the epochs": path(study.longer_job),
        f"fc6–fc8, pruned to {study.scratch_ratio:g}× from random weights": path(study.scratch_job),
        **{f"fc6–fc8, pruned to {ratio:g}×": path(study.pruned_job(ratio)) for ratio in sorted(study.ratios)},
        f"fc6–fc8, Deep Compression to {study.rival_ratio:g}×": path(study.rival_job),
        "the whole network, dense, trained end to end": whole_path(results, study.dense_whole_job(Path())),
        "the whole network, pruned end to end": whole_path(results, study.whole_job(Path())),
    }
