"""The trainer of sentence-transformers, and what Unsloth changes of TRL's, through the Hugging Face integration."""

import warnings

import pytest

pytest.importorskip("torch")
pytest.importorskip("sentence_transformers")

import torch
from hosts.sentence_embeddings import pairs, trainer_of  # its imports use what others deprecate

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

from host_runs import values

import hookline as hl
from hookline.integrations.transformers import attach


def test_training_is_the_same_with_and_without_hookline(tmp_path, options):
    alone = trainer_of(tmp_path / "alone")
    alone.train()
    observed = trainer_of(tmp_path / "observed")
    loop = attach(observed, ["ema", "gradient_monitor"], **options).loop
    observed.train()
    weights = zip(alone.model.parameters(), observed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    losses = [row["loss"] for row in alone.state.log_history if "loss" in row]
    assert [round(value, 4) for _, value in values(loop, "loss")] == pytest.approx(losses, abs=1e-4)
    assert loop.get_metric("val/loss") == loop.get_metric("eval_loss")


def test_evaluator_is_recorded_with_the_evaluation(tmp_path, options):
    trainer, held_out = trainer_of(tmp_path / "out"), pairs(6)
    trainer.evaluator = EmbeddingSimilarityEvaluator(
        held_out["sentence1"], held_out["sentence2"], held_out["score"], name="animals"
    )
    loop = attach(trainer, **options).loop
    trainer.train()
    names = {name for row in loop.history for name in row.metrics if name.endswith("spearman_cosine")}
    assert names == {"eval_animals_spearman_cosine", "val/animals_spearman_cosine"}
    assert [step for step, _ in values(loop, "val/animals_spearman_cosine")] == [4, 8]


def test_callback_stops_at_a_similarity_and_the_model_is_in_the_checkpoint(tmp_path, options):
    class GoodEnough(hl.Callback):
        def on_step_end(self, loop, step_idx):
            if loop.step == 2:
                loop.save_checkpoint()
                loop.request_stop("good enough")

    trainer = trainer_of(tmp_path / "out")
    loop = attach(trainer, [GoodEnough()], **options).loop
    trainer.train()
    (row,) = loop.checkpoints
    saved = SentenceTransformer(str(row.path), device="cpu")
    assert (loop.step, saved.encode(["a cat"]).shape) == (2, (1, 8))


def test_unsloths_own_wrapper_of_train_still_runs_and_is_left_when_detached(tmp_path, options):
    pytest.importorskip("trl")
    from hosts.accelerate_state import fresh_state
    from hosts.language_model import SETTINGS, TOKENIZER, sums, tiny
    from hosts.stand_ins.unsloth import UnslothTrainer
    from trl import SFTConfig

    fresh_state()
    data = sums(4).select_columns(["text"])
    settings = SFTConfig(str(tmp_path / "out"), **SETTINGS)
    trainer = UnslothTrainer(tiny(), args=settings, train_dataset=data, eval_dataset=data, processing_class=TOKENIZER)
    own = vars(trainer)["train"]
    attached = attach(trainer, **options)
    trainer.train()
    assert (trainer._unsloth_training_completed, attached.loop.step) == (True, 4)
    attached.detach()
    assert vars(trainer)["train"] == own
