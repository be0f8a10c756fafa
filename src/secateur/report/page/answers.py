"""What a network gets wrong: its error by class, and pictures of wrong answers."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np

from secateur.report.page.pictures import Picture, as_picture
from secateur.report.page.run import Run
from secateur.report.page.sheets import Cell, Sheet, error_cell, number_cell
from secateur.results import AnswersResult, Mistake

_MOST_CLASSES = 20  # shown, those with the highest error
_NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Gallery:
    """Pictures of wrong answers, and a sentence that says which these are."""

    sentence: str
    pictures: tuple[Picture, ...]


def class_sheet(run: Run) -> Sheet | None:
    """Return the validation error of every class, the highest first; None if the answers of the run are not known."""
    answers = run.answers
    if answers is None or not sum(answers.images):
        return None
    has_dense = bool(answers.dense_wrong)
    rows = [_class_row(answers, number) for number, images in enumerate(answers.images) if images]
    rows.sort(key=lambda row: -float(row[3].key or 0))
    left_out = len(rows) - _MOST_CLASSES
    return Sheet(
        name="classes",
        caption="Validation error by class",
        header=("class", "images", "wrong", "error %", *(("dense wrong", "dense error %") if has_dense else ())),
        rows=tuple(rows[:_MOST_CLASSES]),
        is_sortable=True,
        sorted_by=3,
        note=f"The classes with the highest error; {left_out:,} more are left out." if left_out > 0 else "",
    )


def _class_row(answers: AnswersResult, number: int) -> tuple[Cell, ...]:
    images, wrong = answers.images[number], answers.wrong[number]
    row = [Cell(answers.classes[number], answers.classes[number]), number_cell(images), number_cell(wrong)]
    row.append(Cell(f"{100 * wrong / images:.2f}", 100 * wrong / images, wrong / images))
    if answers.dense_wrong:
        row += [number_cell(answers.dense_wrong[number]), error_cell(100 * answers.dense_wrong[number] / images)]
    return tuple(row)


def gallery(run: Run) -> Gallery | None:
    """Return the wrong answers that a run has kept; None if its answers are not known."""
    answers = run.answers
    if answers is None:
        return None
    total, shown = sum(answers.wrong), len(answers.mistakes)
    if answers.dense_wrong:
        sentence = f"The pruned network gets {answers.lost:,} validation images wrong that the dense one gets right"
        total = answers.lost
    else:
        who = "pruned" if run.is_pruned else "dense"
        sentence = f"The {who} network gets {total:,} validation images wrong"
        sentence += "; no dense network was at hand to compare it with" if run.is_pruned else ""
    sentence += f". The first {shown}:" if 0 < shown < total else "."
    return Gallery(sentence, tuple(_picture(answers, mistake) for mistake in answers.mistakes))


def _picture(answers: AnswersResult, mistake: Mistake) -> Picture:
    channels, height, width = answers.shape
    image = np.frombuffer(base64.b64decode(mistake.pixels), np.uint8).reshape(channels, height, width)
    label = answers.classes[mistake.label]
    answer = answers.classes[mistake.answer] if mistake.answer >= 0 else _NO_ANSWER
    return as_picture(
        image[0] if channels == 1 else np.ascontiguousarray(image.transpose(1, 2, 0)),
        caption=f"{label}, answered {answer}",
        alternative=f"A validation image of class {label} that the network takes for {answer}.",
    )
