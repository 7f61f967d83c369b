"""`YOLO.train` of ultralytics; the lines for hookline are marked with "hookline"."""

from one_callback import GoodEnough  # hookline
from ultralytics import YOLO

from hookline.integrations.ultralytics import attach  # hookline


def main() -> None:
    """Train on eight images until it is good enough."""
    model = YOLO("yolo11n.pt")
    attach(model, [GoodEnough(loss=0.5)], name="boxes")  # hookline
    model.train(data="coco8.yaml", epochs=10)


if __name__ == "__main__":
    main()
