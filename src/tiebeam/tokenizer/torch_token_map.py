"""A list of token ids as `torch.save` writes it: the form that SGLang's --speculative-token-map reads.

SGLang opens it with torch.load(path, weights_only=True) and makes a tensor of what it finds. The file is a zip archive
whose pickle holds one list of whole numbers, written here without torch.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence


def token_map_bytes(ids: Sequence[int]) -> bytes:
    """The bytes of such a file.

    >>> token_map_bytes([3, 1])[:2]
    b'PK'
    """
    buffer = io.BytesIO()
    members = {
        "data.pkl": pickle.dumps([int(i) for i in ids], protocol=2),
        "byteorder": b"little",
        "version": b"3\n",
    }
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, raw in members.items():
            archive.writestr(zipfile.ZipInfo(f"token_map/{name}"), raw)  # without a time: the same ids, the same bytes
    return buffer.getvalue()
