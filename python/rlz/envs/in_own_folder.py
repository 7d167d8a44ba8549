"""The wrapper around environments that have changed the working folder (`folder.py`)."""

from typing import Any

import gymnasium

from rlz.envs.folder import Folder


class InOwnFolder(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose calls run in its own folder."""

    def __init__(self, env: "gymnasium.Env[Any, Any]", folder: Folder) -> None:
        super().__init__(env)
        self._folder = folder

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset there."""
        with self._folder.entered():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step there."""
        with self._folder.entered():
            return self.env.step(action)

    def render(self) -> Any:
        """Render there."""
        with self._folder.entered():
            return self.env.render()

    def close(self) -> None:
        """Close there."""
        with self._folder.entered():
            self.env.close()
