"""The generic client of OpenEnv's WebSocket protocol, as in openenv-core 0.3."""

import json
from dataclasses import dataclass
from typing import Any

from websockets.asyncio.client import ClientConnection, connect


@dataclass
class StepResult:
    observation: Any
    reward: float | None = None
    done: bool = False


class GenericEnvClient:
    """One session of an environment's server."""

    def __init__(self, base_url: str) -> None:
        self._url = base_url.replace("http", "ws", 1) + "/ws"
        self._connection: ClientConnection | None = None

    async def reset(self, **options: Any) -> StepResult:
        return await self._asked({"type": "reset", "data": options})

    async def step(self, action: dict[str, Any], **options: Any) -> StepResult:
        return await self._asked({"type": "step", "data": action})

    async def state(self) -> Any:
        raise NotImplementedError

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _asked(self, message: dict[str, Any]) -> StepResult:
        if self._connection is None:
            self._connection = await connect(self._url)
        await self._connection.send(json.dumps(message))
        data = json.loads(await self._connection.recv())["data"]
        return StepResult(data["observation"], data.get("reward"), data.get("done", False))
