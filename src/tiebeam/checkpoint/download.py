"""The command that downloads a model from the Hub or from an fsspec URL, for messages and fixes."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

from tiebeam.checkpoint.hub.repository import as_address, parse_address
from tiebeam.checkpoint.url_files import is_url


def download_command(source: str) -> tuple[str, str]:
    """The command for a shell, and the local path that it makes.

    >>> download_command("hf://org/name@v1/model.gguf")
    ('hf download org/name model.gguf --revision v1 --local-dir name', 'name/model.gguf')
    >>> print(download_command("s3://bucket/llama")[0])
    python -c 'import fsspec; fs, path = fsspec.url_to_fs("s3://bucket/llama"); fs.get(path, "llama", recursive=True)'
    """
    if is_url(source):
        local = PurePosixPath(source.partition("://")[2]).name or "model"
        url, name = (text.replace("\\", r"\\").replace('"', r"\"") for text in (source.rstrip("/"), local))
        program = f'import fsspec; fs, path = fsspec.url_to_fs("{url}"); fs.get(path, "{name}", recursive=True)'
        return f"python -c {shlex.quote(program)}", local
    address = parse_address(source) or parse_address(as_address(source) or "")
    assert address is not None
    local = PurePosixPath(address.repository).name
    words = ["hf", "download", address.repository, *([address.path] if address.path else [])]
    words += [*(["--revision", address.revision] if address.revision != "main" else []), "--local-dir", local]
    return shlex.join(words), str(PurePosixPath(local, address.path))
