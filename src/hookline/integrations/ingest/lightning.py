"""Lightning's ``metrics.csv`` and ``hparams.yaml``.

The settings may hold tags that ask for Python objects to be made. None is: a tag is ignored, and what
stands behind it is taken as the plain mapping, list or text that it is.
"""

from pathlib import Path
from typing import Any

from hookline.integrations.ingest.csv import CsvFile
from hookline.integrations.ingest.source import Reading

METRICS = "metrics.csv"
HPARAMS = "hparams.yaml"
_MOST_NODES = 100_000


class LightningMetrics(CsvFile):
    """What `CSVLogger` wrote: sparse rows with ``step`` and ``epoch``."""

    format = "lightning"
    ends_lines = True


def read_hparams(file: Path, reading: Reading) -> dict[str, Any]:
    """The settings in a file, without running anything that it names."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        """Takes what has a tag of its own as if it had none."""

    PlainLoader.add_multi_constructor("", _plain_node)
    try:
        # the loader is a safe one: nothing but mappings, lists and scalars comes out of it
        found = yaml.load(file.read_text(encoding="utf-8"), Loader=PlainLoader)  # noqa: S506
        return _copied(found or {}, [_MOST_NODES]) if isinstance(found or {}, dict) else {"hparams": found}
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reading.skip(str(file), error)
        return {}


def _plain_node(loader: Any, suffix: str, node: Any) -> Any:
    import yaml

    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node, deep=True)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node) or node.tag.rpartition(":")[2]  # a class is named by its tag alone


def _copied(value: Any, room: list[int]) -> Any:
    """A value without shared parts; one that aliases blow up, or that contains itself, is refused."""
    room[0] -= 1
    if room[0] < 0:
        raise ValueError(f"it has more than {_MOST_NODES} values")
    if isinstance(value, dict):
        return {str(key): _copied(item, room) for key, item in value.items()}
    if isinstance(value, list | tuple | set):
        return [_copied(item, room) for item in value]
    return value if isinstance(value, bool | int | float | str) or value is None else str(value)
