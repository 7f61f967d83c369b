"""The game behind OpenEnv's WebSocket protocol, with its generic client if it is installed."""

import importlib.util
import json
import threading
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from foreign.base import Case
from foreign.game import QUESTION, Plan, answer
from hookline import rl

IS_REAL = importlib.util.find_spec("openenv") is not None
if IS_REAL:
    from openenv.core.generic_client import GenericEnvClient
else:
    from foreign.stand_ins.openenv import GenericEnvClient


class GameServer:
    """A server of OpenEnv: one session for each connection."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.server: Server = serve(self._session, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def stop(self) -> None:
        self.plan.released.set()
        self.server.shutdown()
        self._thread.join()

    def _session(self, connection: ServerConnection) -> None:
        digit = None
        try:
            for text in connection:
                message = json.loads(text)
                if message["type"] == "close":
                    break
                if message["type"] == "reset":
                    self.plan.open()
                    digit = int(message["data"]["seed"])
                    data: Any = {"observation": {"text": QUESTION}, "reward": None, "done": False}
                else:
                    data = self._step(digit, message["data"])
                connection.send(json.dumps({"type": "observation", "data": data}))
        except (ConnectionClosed, ConnectionError):  # the fault of this name drops the connection
            pass
        if digit is not None:
            self.plan.close()

    def _step(self, digit: Any, action: dict[str, Any]) -> Any:
        wrong = self.plan.step(digit)
        if wrong is not None:
            return wrong
        is_right = action["number"] == digit
        observation = {"text": answer(digit, action["number"])}
        return {"observation": observation, "reward": self.plan.reward(digit, is_right=is_right), "done": is_right}


def to_action(text: str) -> dict[str, int]:
    return {"number": int(text)}


def to_text(observation: dict[str, str]) -> str:
    return observation["text"]


class OpenEnvCase(Case):
    name = "OpenEnv"
    is_real = IS_REAL

    def __init__(self) -> None:
        self.servers: list[GameServer] = []

    def environment(self, plan: Plan) -> Any:
        server = GameServer(plan)
        self.servers.append(server)
        return rl.wrap_environment(
            lambda: GenericEnvClient(base_url=server.url),
            parse=to_action,
            render=to_text,
            seeds=10,
            held_out_share=0,
            name="game",
        )

    def stop(self) -> None:
        for each in self.servers:
            each.stop()
