"""Learned thresholds in the Hugging Face Trainer: a small transformer, pruned and saved.

The model keeps its class, so `Trainer` and `save_pretrained` work. Two things change: the loss includes the penalty,
and the optimizer gets the parameter groups. The task needs no download: which of two symbols occurs more often? Runs in
less than a minute: pip install transformers accelerate; python examples/hugging_face_trainer.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

import secateur
from secateur.measure import count

LENGTH, STEPS = 15, 400


class PruningTrainer(Trainer):
    """A Trainer whose loss pushes the thresholds up."""

    def compute_loss(self, model, inputs, return_outputs=False, **others):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **others)
        if model.training:
            loss = loss + secateur.penalty(self.model, lambda_t=1e-2)
        return (loss, outputs) if return_outputs else loss


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
    # Position and token embeddings are lookup tables and are not pruned here.
    secateur.build_sibling(model, layers={torch.nn.Embedding: None})
    optimizer = torch.optim.Adam(secateur.parameter_groups(model, lr=1e-3, rho=0.8, lambda_wd=1e-4))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / STEPS)

    with TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            per_device_train_batch_size=32,
            save_strategy="no",
            report_to="none",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            # Trainer clips all gradients together at 1 by default. The gradient of a threshold is a sum over a
            # whole layer, so the gradients of the weights would be scaled to almost nothing and only decay would act.
            max_grad_norm=0.0,
            dataloader_pin_memory=False,
        )
        PruningTrainer(
            model=model, args=arguments, train_dataset=examples(4000, seed=1), optimizers=(optimizer, schedule)
        ).train()

        pruned = secateur.prune(model)  # a plain BertForSequenceClassification
        kept = count(pruned).prunable
        print(f"kept {kept.kept:,} of {kept.weights:,} weights, {kept.ratio:.1f}× fewer")

        path = Path(folder) / "model.cut"
        size = secateur.save(pruned, path)
        again = secateur.load(path, network()).eval()

    test = examples(500, seed=2)
    with torch.no_grad():
        answers = again(torch.stack([each["input_ids"] for each in test])).logits.argmax(1)
    error = 100 * (answers != torch.stack([each["labels"] for each in test])).float().mean().item()
    dense = sum(4 * parameter.numel() for parameter in again.parameters())
    print(f"{size:,} bytes instead of {dense:,}; error of the network read back {error:.1f} %")


if __name__ == "__main__":
    main()
