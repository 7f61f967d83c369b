"""A destination for each sink: where it delivers to in a test, what arrived there, and how it can fail."""

from destinations.base import Destination
from destinations.files import CsvDestination, JsonlDestination

DESTINATIONS: list[type[Destination]] = [CsvDestination, JsonlDestination]

__all__ = ["DESTINATIONS", "Destination"]
