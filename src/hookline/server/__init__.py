"""The web page: a JSON interface over the store, a live stream, and static files.

It reads and never writes, unless it is given tokens: then it also receives the runs of other machines.
"""

from hookline.server.root_tokens import Tokens
from hookline.server.web_server import WebServer

__all__ = ["Tokens", "WebServer"]
