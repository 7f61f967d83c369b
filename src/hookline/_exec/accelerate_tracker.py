"""`ScriptTracker`: the tracker behind ``log_with="hookline"`` in a script under `hookline exec`."""

from typing import Any

from hookline._exec.script_run import join_script
from hookline.integrations.accelerate import HooklineTracker


class ScriptTracker(HooklineTracker):
    """Records in the script's run."""

    def __init__(self, run_name: str, **options: Any) -> None:
        super().__init__(run_name, **options)
        join_script(self._run)
