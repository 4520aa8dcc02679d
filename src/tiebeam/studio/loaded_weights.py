"""The models whose weights the studio holds in memory, and the limit on them.

Reports, neighbours and the direct path read rows from the files when they need them. Only generating needs all weights,
in float32: up to eight times the size of a quantized file. One model is held at a time, or as many as fit in the limit;
the one that was used longest ago is dropped first. A generation whose model is dropped ends with an error, so the limit
holds however many pages are open.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam.budget import human_bytes
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.studio.jobs import Progress

if TYPE_CHECKING:
    from tiebeam.decode import Decoder
    from tiebeam.studio.open_models import OpenModel


class WeightsDropped(TiebeamError):
    """The weights of a model were dropped to make room for those of another."""


class _Loaded(NamedTuple):
    model: OpenModel
    decoder: Decoder
    nbytes: int


class LoadedWeights:
    """Decoders by the id of their model. One of them runs, or is opened, at a time."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit
        self._loaded: OrderedDict[str, _Loaded] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, model: OpenModel, progress: Progress | None = None) -> None:
        """Load the weights of a model unless they are in memory, and drop others that exceed the limit with it."""
        from tiebeam.decode import Decoder

        with self._lock:
            id = model.source.id
            if id in self._loaded and self._loaded[id].model is model:
                self._loaded.move_to_end(id)
                return
            needed = expanded_bytes(model)
            if self.limit is not None and needed > self.limit:
                raise BadRequest(
                    f"{model.source.name} needs {human_bytes(needed)} of memory to generate, and the limit is "
                    f"{human_bytes(self.limit)}; restart the studio with a larger --memory"
                )
            Decoder.check_runnable(model.checkpoint)  # before others are dropped for it
            self._loaded.pop(id, None)
            while self._loaded and (self.limit is None or self._total() + needed > self.limit):
                self._loaded.popitem(last=False)
            report = progress or (lambda stage, done, total: None)
            decoder = Decoder.open(model.checkpoint, progress=lambda done, total: report("loading layers", done, total))
            self._loaded[id] = _Loaded(model, decoder, needed)

    @contextmanager
    def running(self, model: OpenModel) -> Iterator[Decoder]:
        """The decoder of a loaded model, for one step: keep no reference to it."""
        with self._lock:
            loaded = self._loaded.get(model.source.id)
            if loaded is None or loaded.model is not model:
                raise WeightsDropped(
                    f"stopped: the weights of {model.source.name} were dropped when another model was opened; "
                    "start the studio with a larger --memory to hold both"
                )
            yield loaded.decoder

    def to_dict(self) -> dict[str, Any]:
        loaded = [
            {"id": id, "name": one.model.source.name, "bytes": one.nbytes} for id, one in list(self._loaded.items())
        ]
        return {"limit": self.limit, "loaded": loaded}

    def _total(self) -> int:
        return sum(one.nbytes for one in self._loaded.values())


def expanded_bytes(model: OpenModel) -> int:
    """Bytes of all weights in float32."""
    return 4 * sum(info.size for info in model.checkpoint.tensors.values())
