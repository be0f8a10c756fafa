"""Pruning in the Hugging Face Trainer: a small transformer, an ordinary Trainer, and one callback.

Two lines are marked with "secateur:". The task needs no download: which of two symbols occurs more often? Runs in less
than a minute: pip install "secateur[transformers]"; python examples/hugging_face_trainer.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from secateur import Budget
from secateur.integrations.transformers import PruningCallback  # secateur: the callback
from secateur.measure import count

LENGTH = 15


def examples(number: int, seed: int) -> list[dict[str, Tensor]]:
    tokens = torch.randint(0, 2, (number, LENGTH), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": (row.sum() > LENGTH // 2).long()} for row in tokens]


def network() -> BertForSequenceClassification:
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=2,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=LENGTH,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def main() -> None:
    set_seed(0)
    model = network()
    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=400,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            dataloader_pin_memory=False,
        )
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=examples(4000, seed=1),
            callbacks=[PruningCallback(Budget(ratio=10))],  # secateur: how small
        )
        trainer.train()
        trainer.save_model(Path(folder) / "pruned")  # the model is plain again, with exact zeros
        again = BertForSequenceClassification.from_pretrained(Path(folder) / "pruned").eval()

    kept = count(again).prunable
    test = examples(500, seed=2)
    with torch.no_grad():
        answers = again(torch.stack([each["input_ids"] for each in test])).logits.argmax(1)
    error = 100 * (answers != torch.stack([each["labels"] for each in test])).float().mean().item()
    print(f"kept {kept.kept:,} of {kept.weights:,} weights, {kept.ratio:.1f}× fewer; error {error:.1f} %")


if __name__ == "__main__":
    main()
