"""The `SentenceTransformerTrainer`, with a tiny model of static embeddings."""

import warnings
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports use what others deprecate
    from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
    from sentence_transformers import SentenceTransformerTrainingArguments as Arguments
    from sentence_transformers.sentence_transformer.losses import CosineSimilarityLoss
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from hookline.integrations.transformers import attach
from hosts.accelerate_state import fresh_state
from hosts.base import Host
from hosts.language_model import SETTINGS

WORDS = ("a", "cat", "dog", "sleeps", "runs", "here", "there", "now")


class SentenceTransformers(Host):
    """`sentence_transformers.SentenceTransformerTrainer`."""

    name = "sentence_transformers"

    def train(self, *callbacks: Any, resume: Path | None = None) -> None:
        trainer = trainer_of(self.directory / "out")
        self.loop = attach(trainer, callbacks, name=self.name, **self.options).loop
        trainer.train(resume_from_checkpoint=None if resume is None else str(resume))


def trainer_of(directory: Path, **settings: Any) -> Any:
    """A trainer of pairs of sentences, with a similarity for each."""
    fresh_state()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tokenizer = Tokenizer(WordLevel({word: number for number, word in enumerate(("[UNK]", *WORDS))}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=8)], device="cpu")
    return SentenceTransformerTrainer(
        model,
        Arguments(str(directory), **{**SETTINGS, **settings}),
        train_dataset=pairs(8),
        eval_dataset=pairs(4),
        loss=CosineSimilarityLoss(model),
    )


def pairs(count: int) -> Any:
    """Sentences, and whether both are of the same animal."""
    rows = [
        (f"a cat {WORDS[3 + n % 4]}", f"a {WORDS[1 + n % 2]} {WORDS[7 - n % 4]}", 1.0 - n % 2) for n in range(count)
    ]
    return Dataset.from_list([{"sentence1": one, "sentence2": two, "score": score} for one, two, score in rows])
