"""A `SentenceTransformerTrainer`; the lines for hookline are marked with "hookline"."""

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from one_callback import GoodEnough  # hookline
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from hookline.integrations.transformers import attach  # hookline
from hookline.testing import character_tokenizer


def main() -> None:
    """Learn which pairs of sums are equal, until it is good enough."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = character_tokenizer().backend_tokenizer
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu")
    rows = [{"one": f"{n}", "two": f"{n + m}", "score": 1.0 - m} for n in range(16) for m in (0, 1)]
    trainer = SentenceTransformerTrainer(
        model,
        SentenceTransformerTrainingArguments(
            "checkpoints",
            max_steps=100,
            per_device_train_batch_size=8,
            learning_rate=0.05,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        loss=CosineSimilarityLoss(model),
    )
    attach(trainer, [GoodEnough(loss=0.1)], name="pairs")  # hookline
    trainer.train()


if __name__ == "__main__":
    main()
