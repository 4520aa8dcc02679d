"""Kinds read in a loader's source, for types that cannot be run tiny. survey.py checks them on those that can.

mlx-lm's model files and llama.cpp's `src/models/*.cpp` state in a few regular lines what they do with the pair. A file
that is written in any other way gets no kind.
"""

from __future__ import annotations

import re
from pathlib import Path

_FIELD = re.compile(r"^    tie_word_embeddings: (?:Optional\[)?bool\]?(?: = (True|False))?$", re.M)
_HEAD = re.compile(r"^( +)self\.(?:lm_head|embed_out)\s*=\s*nn\.Linear", re.M)
_POP = re.compile(r"tie_word_embeddings:\s*\n\s*weights\.pop\(\s*[\"']lm_head\.weight")


def mlx_lm(models: Path) -> dict[str, str]:
    """Model type -> kind, from mlx_lm/models. A type that mlx-lm remaps to another file is not listed."""
    found = {}
    for path in sorted(models.glob("*.py")):
        kind = _mlx_kind(path.read_text())
        if kind:
            found[path.stem] = kind
    return found


def _mlx_kind(text: str) -> str | None:
    if "class ModelArgs" not in text or "text_config" in text or text.count("class Model(") != 1:
        return None
    field = _FIELD.search(text)
    absent = "untied" if field is None else {"True": "tied", "False": "untied", None: "required"}[field.group(1)]
    heads = _HEAD.findall(text)
    own = "dropped" if _POP.search(text) else "refused"
    if "lm_head" in text[text.find("def sanitize") :] and own == "refused" and "def sanitize" in text:
        return None  # sanitize does something else with the head
    conditional = re.search(r"if not (?:self\.)?args\.tie_word_embeddings:\s*\n\s*self\.lm_head", text)
    if field and conditional and len(heads) == 1 and ".as_linear(" in text:
        return f"flag top {absent} {own}"
    if heads and ".as_linear(" not in text and not conditional:
        return f"never top {'required' if absent == 'required' else 'tied'} dropped"
    if not heads and ".as_linear(" in text and field is None:
        return f"always top tied {own}"
    return None


def llama_cpp(source: Path) -> dict[str, str]:
    """GGUF architecture -> `optional`, `required` or `unused` (no output.weight is read), from llama.cpp's source."""
    names = dict(re.findall(r"\{ (LLM_ARCH_\w+),\s+\"([^\"]+)\"", (source / "src/llama-arch.cpp").read_text()))
    classes = re.findall(
        r"case (LLM_ARCH_\w+):\s*\n\s*return new (llama_model_\w+)\(", _text(source, "llama-model.cpp")
    )
    parents = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", _text(source, "models/models.h")))
    loads: dict[str, str] = {}
    for path in sorted((source / "src/models").glob("*.cpp")):
        text = re.sub(r"//.*", "", path.read_text())
        for name, body in re.findall(r"void (llama_model_\w+)::load_arch_tensors\([^{]*\{(.*?)\n\}", text, re.S):
            kind = _gguf_kind(body)
            if kind:
                loads[name] = kind
    found = {}
    for case, cls in classes:
        while cls not in loads and cls in parents:
            cls = parents[cls]
        if case in names and cls in loads:
            found[names[case]] = loads[cls]
    return found


def _text(source: Path, name: str) -> str:
    return (source / "src" / name).read_text()


def _gguf_kind(body: str) -> str | None:
    flags = re.findall(r"tn\(LLM_TENSOR_OUTPUT,\s*\"weight\"\)[^;]*,\s*(\w+)\);", body)
    if flags and set(flags) <= {"0"}:
        return "required"
    if set(flags) == {"TENSOR_NOT_REQUIRED"} and "TENSOR_DUPLICATED" in body:
        return "optional"
    return "unused" if not flags and "LLM_TENSOR_TOKEN_EMBD" in body and "LLM_TENSOR_OUTPUT" in body else None
