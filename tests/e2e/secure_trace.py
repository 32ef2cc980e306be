"""For tests of secure aggregation: clients write down what they encoded, the server what it opened.

Installed in the processes under test only; `NBAFL_TRACE` names the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from nbafl.secure.client import Client
from nbafl.secure.server import Opened, Round


def install() -> None:
    folder = Path(os.environ["NBAFL_TRACE"])
    folder.mkdir(parents=True, exist_ok=True)
    train, opened = Client.train, Round.open

    def tracing_train(self: Client, request: Any, encode: Callable[[bytes], np.ndarray]) -> bytes:
        def noted(commitment: bytes) -> np.ndarray:
            words = encode(commitment)
            np.save(folder / f"words-{request.round}-{commitment.hex()[:16]}-{self.number}.npy", words)
            return words

        return train(self, request, noted)

    def tracing_open(self: Round) -> Opened:
        result = opened(self)
        name = f"sum-{self.context.round}"
        np.save(folder / f"{name}.npy", result.words)
        said = {"members": list(result.members), "commitment": self.commitment.hex()}
        (folder / f"{name}.json").write_text(json.dumps(said))
        return result

    Client.train, Round.open = tracing_train, tracing_open  # type: ignore[method-assign]
