"""Where a model looks: its attention weights as an image, every twentieth step.

Prints the steps at which it was recorded, and how much of the last position's attention is at the first position, which
holds what the model has to find.
"""

from typing import Any

import torch

import hookline as hl

LENGTH, SYMBOLS = 8, 4


class FirstSymbol(torch.nn.Module):  # type: ignore[misc]
    """Attends from the last position to all others, and says which symbol came first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(SYMBOLS, 16)
        self.position = torch.nn.Parameter(0.1 * torch.randn(LENGTH, 16))
        self.attention = torch.nn.MultiheadAttention(16, num_heads=2, batch_first=True)
        self.head = torch.nn.Linear(16, SYMBOLS)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """Return the logits of the first symbol."""
        inputs = self.embed(symbols) + self.position
        mixed, _ = self.attention(inputs, inputs, inputs, average_attn_weights=False)
        return self.head(mixed[:, -1])


class AttentionImage(hl.Callback):
    """Records the attention of each head for the first example of a batch, as a grid of images."""

    def __init__(self, every: int = 20) -> None:
        self.period = every
        self.weights: Any = None

    def on_train_start(self, loop: Any) -> None:
        """Keep what the attention layer returns."""
        loop.model.attention.register_forward_hook(self.keep)

    def keep(self, layer: Any, inputs: Any, outputs: Any) -> None:
        """Keep the weights: (batch, heads, to, from)."""
        self.weights = outputs[1].detach()

    def on_step_end(self, loop: hl.LoopState, step_idx: int) -> dict[str, Any]:
        """Return the image; it is recorded as ``attention_image/heads``."""
        if loop.step % self.period:
            return {}
        caption = f"{self.weights.shape[1]} heads; a row is a position, a column what it looks at"
        at_first = self.weights[0, :, -1, 0].mean()
        return {"heads": hl.Image(self.weights[0], range=(0, 1), caption=caption), "at_first": at_first}


def main() -> None:
    """Train the model to name the first symbol."""
    torch.manual_seed(0)
    data = [(batch, batch[:, 0]) for batch in torch.randint(SYMBOLS, (200, 32, LENGTH))]
    config = hl.TrainerConfig(name="attention", epochs=1, learning_rate=0.01, output_dir="runs", summary=False)
    loss = torch.nn.functional.cross_entropy
    trainer = hl.Trainer(FirstSymbol(), data, config=config, loss=loss, callbacks=[AttentionImage()])
    trainer.fit()
    assert trainer.dir is not None
    images = [record for record in hl.read(trainer.dir) if isinstance(record, hl.sinks.Media)]
    print(f"{len(images)} images of {images[0].data['images']} heads, the last at step {images[-1].step}")
    print(f"attention at the first position: {trainer.metrics['attention_image/at_first']:.2f}")


if __name__ == "__main__":
    main()
