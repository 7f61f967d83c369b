"""Media as plain values, so that what was logged can be compared with what a destination has."""

import io
import wave
from typing import Any

import numpy as np
import PIL.Image


def image(content: bytes) -> Any:
    """The pixels of an image as lists, or the number of frames and the size of an animated one."""
    picture = PIL.Image.open(io.BytesIO(content))
    frames = getattr(picture, "n_frames", 1)
    return np.asarray(picture).tolist() if frames == 1 else {"frames": frames, "size": picture.size}


def audio(content: bytes) -> Any:
    """The rate and the number of samples of a WAV file."""
    with wave.open(io.BytesIO(content)) as file:
        return {"rate": file.getframerate(), "samples": file.getnframes()}


def bins(counts: Any, edges: Any) -> Any:
    """A histogram as rows."""
    return [list(row) for row in zip(edges[:-1], edges[1:], counts, strict=True)]
