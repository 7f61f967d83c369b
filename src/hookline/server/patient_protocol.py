"""Connections that lead to nothing: who connects to a server and then does not ask for anything is let go."""

import asyncio
from typing import Any

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HEAD_SECONDS = 15.0


def patient(head_seconds: float = HEAD_SECONDS) -> type[asyncio.Protocol]:
    """The protocol of uvicorn, with an end to its patience.

    Args:
        head_seconds: How long a new connection may take to ask for something.
    """

    class Patient(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
        cycle: Any
        transport: asyncio.Transport

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            asyncio.get_running_loop().call_later(head_seconds, self._let_go)

        def _let_go(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

    return Patient
