"""Published methods, one small file each, and the table of them.

A method is a frozen dataclass of its settings whose `stages` yields what to train next and returns the finished
network. It never trains by itself, so whoever drives it decides how, and counts what every method costs alike.
"""

from secateur.methods.deep_compression import DeepCompression
from secateur.methods.dense import Dense
from secateur.methods.han2015 import Han2015
from secateur.methods.manessi2018 import Manessi2018
from secateur.methods.stage import Method, Stage

__all__ = ["METHODS", "DeepCompression", "Dense", "Han2015", "Manessi2018", "Method", "Stage"]

METHODS: dict[str, type[Method]] = {
    "dense": Dense,
    "han2015": Han2015,
    "deep-compression": DeepCompression,
    "manessi2018": Manessi2018,
}
