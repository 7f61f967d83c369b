"""The web page: a JSON interface over the store, a live stream, and static files; it reads and never writes."""

from hookline.server.web_server import WebServer

__all__ = ["WebServer"]
