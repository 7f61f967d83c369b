"""Connections that lead to nothing: who connects to a server and then does not ask for anything is let go.

That holds for a new connection and for one that has had its answer: uvicorn itself waits for ever for the rest of a
request that was begun.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 15.0


def patient(head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """The protocol of uvicorn, with an end to its patience.

    Args:
        head_seconds: How long a connection may take to ask for something; after an answer up to twice as long.
    """

    class Patient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        cycle: Any
        transport: asyncio.Transport
        _answered: Any = None
        """The request that had its answer when the connection was last looked at."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._look_later()

        def _look_later(self) -> None:
            asyncio.get_running_loop().call_later(head_seconds, self._look)

        def _look(self) -> None:
            if self.transport.is_closing():
                return
            if self.cycle is None or self.cycle is self._answered:
                self.transport.close()
                return
            self._answered = self.cycle if self.cycle.response_complete else None
            self._look_later()

    return Patient
