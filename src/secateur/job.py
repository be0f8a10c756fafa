"""What to run: network × data × methods × recipe × seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, TypeAlias, get_args

from typing_extensions import Doc

from secateur.data.crops import CROPS, CropKind
from secateur.data.scaling import SCALINGS, ScalingKind
from secateur.data.streams import UNREADABLE
from secateur.encode.codecs import CODECS
from secateur.methods import Dense, Manessi2018, Method, method_from_json, method_to_json
from secateur.nearest import require_choices
from secateur.networks import modules_of
from secateur.plain_data import from_plain, to_plain
from secateur.train.recipe import Recipe, require_whole

GIVEN = "given"  # the preset of a run whose network and data are objects in Python: no command repeats it
FROM_WEIGHTS = ", from weights "  # between the size of given data and a checksum of the weights training began with

ImageOrder: TypeAlias = Literal["stage", "run"]


@dataclass(frozen=True, kw_only=True)
class InputConfig:
    """How images become inputs of the network while it trains."""

    scaling: Annotated[
        ScalingKind, Doc("pixels in 0…1, of mean 0 and deviation 1, or 0…255 less the mean of each channel")
    ] = "unit"
    augment: Annotated[float, Doc("share of training images replaced by a distorted copy")] = 0.0
    input_dropout: Annotated[float, Doc("share of input pixels set to zero in training")] = 0.0
    input_shape: Annotated[
        tuple[int, int, int] | None,
        Doc("channels, height and width of inputs: pictures of a folder are resized to it (none: the network's own)"),
    ] = None
    crop: Annotated[
        CropKind,
        Doc(
            "which part of a photograph training sees: its centre; moved by up to 4 pixels and mirrored at random; a "
            "random crop of the picture at 256 pixels, mirrored and with other light; or one of random size and shape"
        ),
    ] = "centre"
    most_unreadable: Annotated[float, Doc("share of pictures in files that may be skipped as unreadable")] = UNREADABLE
    image_order: Annotated[
        ImageOrder,
        Doc(
            "whether the order of images starts anew in every stage, or is that of one training for all stages of a "
            "run: methods with different stages then see the same images in the same order"
        ),
    ] = "stage"

    def __post_init__(self) -> None:
        if self.input_shape is not None:
            require_whole(least=1, **dict(zip(("channels", "height", "width"), self.input_shape, strict=True)))
        require_choices(self, scaling=SCALINGS, crop=CROPS, image_order=get_args(ImageOrder))
        for name in ("input_dropout", "augment", "most_unreadable"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if self.augment and self.crop != "centre":
            raise ValueError(f'augment distorts digits and crop "{self.crop}" cuts photographs: set one of them')


@dataclass(frozen=True, kw_only=True)
class Coding:
    """How the finished network is written to a file; no setting changes its function."""

    codec: Annotated[str, Doc(f"raw, {', '.join(codec.name for codec in CODECS)}, or the smallest of them")] = (
        "smallest"
    )
    sort_units: Annotated[bool, Doc("sort hidden units, which keeps the function and makes the file smaller")] = True


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run to be carried out; two equal jobs give the same bits."""

    network: str
    data: str = "mnist"
    start: str = ""  # "pretrained" or the path of a file: the weights to start from, instead of random ones
    preset: str = "paper"  # the named settings that it started from: a part of its name, no setting by itself
    methods: tuple[Method, ...] = (Manessi2018(),)
    recipe: Recipe = field(default_factory=Recipe)
    inputs: InputConfig = field(default_factory=InputConfig)
    coding: Coding = field(default_factory=Coding)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.methods:
            raise ValueError("a job needs at least one method")
        if self.methods[0].needs_trained:
            name = self.methods[0].name
            raise ValueError(f'method "{name}" works on a trained network: put one that trains before it')

    @property
    def label(self) -> str:
        """The names of its methods, such as "manessi2018+few-values"."""
        return "+".join(method.name for method in self.methods)

    @property
    def is_given(self) -> bool:
        """Whether its network and data are objects in Python."""
        return self.preset == GIVEN

    @property
    def data_name(self) -> str:
        """The data as users read them: their name, or the size of given data."""
        return self.data.partition(FROM_WEIGHTS)[0] if self.is_given else self.data

    @property
    def is_dense(self) -> bool:
        """Whether it only trains the network: a reference for other jobs."""
        return all(method.is_reference for method in self.methods)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules of other packages that its network and its data are in."""
        return tuple(dict.fromkeys((*modules_of(self.network), *modules_of(self.data))))

    def with_method(self, method: Method) -> Job:
        """Return the job with another first method, trained for as many epochs in all.

        A method whose own epochs are more than that keeps the recipe's.
        """
        extra = method.epochs(self.recipe) - self.recipe.epochs
        epochs = self.methods[0].epochs(self.recipe) - extra
        epochs = epochs if epochs > 0 else self.recipe.epochs
        return replace(self, methods=(method, *self.methods[1:]), recipe=replace(self.recipe, epochs=epochs))

    def reference(self) -> Job:
        """Return the dense job to compare this one with: same network, data, recipe and seed, and as many epochs."""
        return replace(self.with_method(Dense()), methods=(Dense(),))

    def to_json(self) -> dict[str, Any]:
        """Return the job as plain data."""
        return {
            "network": self.network,
            "data": self.data,
            **({"start": self.start} if self.start else {}),
            "preset": self.preset,
            "methods": [method_to_json(method) for method in self.methods],
            "recipe": to_plain(self.recipe),
            "inputs": to_plain(self.inputs),
            "coding": to_plain(self.coding),
            "seed": self.seed,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Job:
        """Read a job back; settings that are missing have their defaults."""
        known = from_plain(_PlainJob, content)
        methods = tuple(method_from_json(method) for method in known.methods)
        return cls(
            network=known.network,
            data=known.data,
            start=known.start,
            preset=known.preset,
            methods=methods,
            recipe=known.recipe,
            inputs=known.inputs,
            coding=known.coding,
            seed=known.seed,
        )


@dataclass(frozen=True, kw_only=True)
class _PlainJob:
    """A job as JSON has it, before its methods are looked up."""

    network: str
    data: str
    preset: str
    methods: tuple[dict[str, Any], ...]
    recipe: Recipe
    inputs: InputConfig
    coding: Coding
    seed: int
    start: str = ""
