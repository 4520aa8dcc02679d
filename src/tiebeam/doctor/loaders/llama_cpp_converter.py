"""llama.cpp's converter from Hugging Face to GGUF: it does not read the flag."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import Config, Loader, Outcome, Table, look_up
from tiebeam.inspection import Report

TABLE: Table = {
    ("one", True): ("ties", "no output.weight is written; llama.cpp then uses token_embd.weight"),
    ("one", False): ("ties", "the flag is not read: without output.weight llama.cpp uses token_embd.weight"),
    ("equal", True): ("keeps both", "output.weight is written as well; the gemma family skips it"),
    ("equal", False): ("keeps both", "as stored"),
    ("differ", True): ("keeps both", "the flag is not read; the gemma family drops the stored head"),
    ("differ", False): ("keeps both", "as stored"),
    ("head", True): ("refuses", "token_embd.weight is missing when the GGUF is loaded"),
    ("head", False): ("refuses", "token_embd.weight is missing when the GGUF is loaded"),
    ("neither", True): ("refuses", "token_embd.weight is missing when the GGUF is loaded"),
    ("neither", False): ("refuses", "token_embd.weight is missing when the GGUF is loaded"),
    ("rows", True): ("refuses", "wrong shape of output.weight"),
    ("rows", False): ("refuses", "wrong shape of output.weight"),
}


def predict(report: Report, config: Config) -> Outcome:
    return look_up(TABLE, report, report.pair.declared)


LOADER = Loader(
    rank=4,
    name="llama.cpp converter",
    version="",
    date="2026-11-15",
    observed=False,
    formats=("safetensors", "pytorch"),
    where="convert_hf_to_gguf.py and llama-model.cpp",
    predict=predict,
)
