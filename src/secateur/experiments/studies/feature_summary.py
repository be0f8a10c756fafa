"""What is trained in the study of AlexNet's features, and where its results are published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from secateur.budget import Budget
from secateur.experiments.studies.published import result_path
from secateur.job import InputConfig, Job
from secateur.methods import Budgeted, Dense, Method
from secateur.networks import Shape
from secateur.train.recipe import Recipe

NETWORK, LAYERS = "alexnet-torchvision", "alexnet-torchvision-classifier"

# An hour of one core each with 100,000 pictures, in bf16.
_SGD = Recipe(epochs=14, optimizer="sgd", lr=1e-2, schedule="cosine", clip_norm=5.0, precision="bf16")
_WHOLE = replace(_SGD, epochs=1, batch_size=64, lr=1e-3)


@dataclass(frozen=True, kw_only=True)
class FeatureStudy:
    """What is trained on which pictures, how far it is pruned, and for how long."""

    data: str = "tiny-imagenet"
    ratio: float = 20.0
    recipe: Recipe = _SGD
    whole_recipe: Recipe = _WHOLE
    seed: int = 0
    input_shape: Shape = (3, 224, 224)

    def classifier_job(self, method: Method) -> Job:
        """Return the training of the linear layers by a method."""
        return Job(
            network=LAYERS, data=self.data, preset="general", methods=(method,), recipe=self.recipe, seed=self.seed
        )

    @property
    def method(self) -> Budgeted:
        """How the linear layers are pruned, and then the whole network."""
        return Budgeted(budget=Budget(ratio=self.ratio))

    def whole_job(self, start: Path) -> Job:
        """Return the training of the whole network from the weights in a file."""
        return Job(
            network=NETWORK,
            data=self.data,
            start=str(start),
            preset="general",
            methods=(replace(self.method, fine_tune=0.0),),
            recipe=self.whole_recipe,
            inputs=InputConfig(input_shape=self.input_shape),
            seed=self.seed,
        )


def whole_path(results: Path, job: Job) -> Path:
    """Return the path of the published result of the whole network."""
    return result_path(results, job, variant="whole")


def feature_paths(results: Path, study: FeatureStudy) -> dict[str, Path]:
    """Return where the results of the study are published, by what was trained."""
    return {
        "fc6–fc8, dense": result_path(results, study.classifier_job(Dense())),
        "fc6–fc8, pruned": result_path(results, study.classifier_job(study.method)),
        "the whole network, pruned end to end": whole_path(results, study.whole_job(Path())),
    }
