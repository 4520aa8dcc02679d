"""The run directory, written from NumPy's arrays: the same files as torch's run leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tiebeam.errors import UnreadableInput
from tiebeam.train.run_directory import MODEL, STATE, RunDirectory

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.train.backends.mlx.gpt import GPT

Arrays = dict[str, npt.NDArray[Any]]


class ArrayRunDirectory(RunDirectory):
    def save_checkpoint(self, model: GPT, corpus: Corpus, card: str) -> None:
        """What `save_model` saves, of a model on MLX."""
        config, tensors = model.export(fold=model.config.foldable)
        self._write(MODEL, save({name: np.ascontiguousarray(t) for name, t in tensors.items()}, {"format": "pt"}))
        self._write("config.json", (json.dumps(config, indent=2) + "\n").encode())
        self._write(corpus.tokenizer.filename, corpus.tokenizer.raw)
        self._write("README.md", card.encode())

    def save_arrays(self, tensors: Arrays, facts: Mapping[str, Any]) -> None:
        """The state of the run, in place of the one before once it is complete."""
        flat = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
        self._write(STATE, save(flat, {"facts": json.dumps({**facts, "backend": "mlx"})}))

    def load_arrays(self) -> tuple[Arrays, dict[str, Any]]:
        if not (self.path / STATE).is_file():
            raise UnreadableInput(f"{self.path} has no {STATE}: the run never got as far as a saved state; start again")
        try:
            with safe_open(self.path / STATE, "np") as file:
                facts: dict[str, Any] = json.loads((file.metadata() or {})["facts"])
                if facts.get("backend") != "mlx":
                    raise UnreadableInput(f"the state in {self.path} is not MLX's; go on with --backend torch")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except (SafetensorError, KeyError, ValueError) as error:
            raise UnreadableInput(f"{self.path / STATE} is damaged: {error}") from None
        return tensors, facts
