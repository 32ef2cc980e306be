"""The state after the last finished round, replaced in one step, so that a killed run goes on where it was.

Every random draw is a function of (seed, round, purpose), so no generator state is kept: a run that was killed ends
with the very same model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from nbafl.durable import write_bytes
from nbafl.errors import DataError, Refused
from nbafl.folders.runs import RunFolder, keep_rounds

if TYPE_CHECKING:
    from torch import Tensor

    from nbafl.run.loop import Trainer

STATE = "checkpoint/state.safetensors"


def kept(folder: Path) -> bool:
    """Whether the folder holds a state to go on from."""
    return (folder / STATE).is_file()


def write(run: RunFolder, trainer: Trainer, fingerprint: str) -> None:
    """Keep the state of the round that was just finished."""
    metadata = {"round": str(trainer.round), "fingerprint": fingerprint}
    content = save(on_cpu(trainer.state()), metadata=metadata)
    # 0600: the server of a real federation keeps the secret seed of its draw in it.
    write_bytes(run.path / STATE, content, mode=0o600)


def restore(run: RunFolder, trainer: Trainer, fingerprints: tuple[str, ...]) -> None:
    """Take up the last finished round, kept under any of these fingerprints; drop metrics of rounds never finished."""
    path = run.path / STATE
    if path.is_file():
        try:
            with safe_open(path, framework="pt") as state:
                if (state.metadata() or {}).get("fingerprint") not in fingerprints:
                    raise Refused(
                        f"{str(run.path)!r} was made from other data or another model: "
                        "it cannot be resumed with these."
                    )
                trainer.restore({name: state.get_tensor(name).clone() for name in state.keys()})  # noqa: SIM118
        except SafetensorError:
            raise DataError(f"checkpoint {str(path)!r} is damaged.") from None
    keep_rounds(run.path, trainer.round)


def on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors as safetensors can keep them: one of several names for a tied weight gets a copy of its own."""
    kept: dict[str, Tensor] = {}
    met: set[int] = set()
    for name, value in tensors.items():
        alone = value.detach().cpu().contiguous()
        place = alone.untyped_storage().data_ptr()
        kept[name] = alone.clone() if place in met else alone
        met.add(place)
    return kept
