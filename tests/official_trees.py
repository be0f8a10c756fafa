"""Small trees of pictures in exactly the layouts in which ImageNet and its relatives are published."""

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from secateur.data.imagenet import SynsetPictures

Image = pytest.importorskip("PIL.Image")


def jpeg(seed: int, size: tuple[int, int] = (20, 16), **options) -> bytes:
    """Encode noise of a width and height."""
    pixels = np.random.default_rng(seed).integers(0, 256, (*reversed(size), 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=90, **options)
    return out.getvalue()


PICTURES = [jpeg(seed, size) for seed, size in enumerate([(20, 16), (16, 20), (24, 24), (11, 40), (18, 17)])]


def write_folders(root: Path, synsets: Iterable[str], *, train: int = 2, val: int = 1) -> Path:
    """Write train/n01440764/n01440764_0.JPEG and val/n01440764/ILSVRC2012_val_00000001.JPEG, and so on."""
    number = 0
    for label, synset in enumerate(synsets):
        for part, count in (("train", train), ("val", val)):
            folder = root / part / synset
            folder.mkdir(parents=True)
            for index in range(count):
                number += part == "val"
                name = f"{synset}_{index}" if part == "train" else f"ILSVRC2012_val_{number:08d}"
                (folder / f"{name}.JPEG").write_bytes(PICTURES[(label + index) % len(PICTURES)])
    return root


def write_flat_val(root: Path, count: int) -> list[str]:
    """Write val/ILSVRC2012_val_00000001.JPEG and so on; return the names."""
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, count + 1)]
    (root / "val").mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        (root / "val" / name).write_bytes(PICTURES[number % len(PICTURES)])
    return names


def write_tiny(root: Path, entry: SynsetPictures, *, val: int = 100) -> Path:
    """Write Tiny-ImageNet's layout: train/SYNSET/images, and val/images with val_annotations.txt."""
    rows = []
    for label, synset in enumerate(entry.synsets):
        folder = root / "train" / synset / "images"
        folder.mkdir(parents=True)
        (folder.parent / f"{synset}_boxes.txt").write_text(f"{synset}_0.JPEG\t0\t0\t62\t61\n")
        (folder / f"{synset}_0.JPEG").write_bytes(PICTURES[label % len(PICTURES)])
        rows.append(f"val_{label}.JPEG\t{synset}\t0\t32\t44\t62\n")
    (root / "val" / "images").mkdir(parents=True)
    for label in range(val):
        (root / "val" / "images" / f"val_{label}.JPEG").write_bytes(PICTURES[label % len(PICTURES)])
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    return root


def write_shard(path: Path, samples: Iterable[tuple[str, dict[str, bytes]]]) -> Path:
    """Write a tar archive with the files KEY.SUFFIX of samples, one after the other."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for key, files in samples:
            for suffix, content in files.items():
                member = tarfile.TarInfo(f"{key}.{suffix}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return path


def samples(labels: Iterable[int], start: int = 0) -> list[tuple[str, dict[str, bytes]]]:
    """Return samples with a picture and a label."""
    return [
        (f"{start + number:06d}", {"jpg": PICTURES[number % len(PICTURES)], "cls": str(label).encode()})
        for number, label in enumerate(labels)
    ]


def write_shards(root: Path, classes: int, *, train: int = 4, val: int = 1) -> Path:
    """Write train/shard-000000.tar, train/shard-000001.tar and val/shard-000000.tar."""
    for part, count in (("train", train), ("val", val)):
        labels = [*range(classes)] * count
        half = len(labels) // 2 if part == "train" else len(labels)
        for number, start in enumerate(range(0, len(labels), half)):
            write_shard(root / part / f"shard-{number:06d}.tar", samples(labels[start : start + half], start))
    return root
