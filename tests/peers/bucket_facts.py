"""What tiebeam does with a model in a bucket, for the scripts that serve one: observe_s3.py and observe_gcs.py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Protocol


class Counts(Protocol):
    """A server that counts the bytes of its answers, and can refuse everything."""

    sent: int
    forbid: bool


def error_of(function: Any, *arguments: Any) -> str:
    from tiebeam.errors import TiebeamError

    try:
        function(*arguments)
    except TiebeamError as error:
        return str(error)
    return ""


def observe(directory: Path, server: Counts, bucket: str) -> dict[str, Any]:
    """Compare `directory` with the same files under `bucket`/team/big, and count what is read of them."""
    import tiebeam
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.checkpoint.download import download_command

    def facts(source: str) -> list[Any]:
        diagnosis = tiebeam.diagnose(source)
        document = diagnosis.report.to_dict()
        return [document["tie"], document["params"], [finding.code for finding in diagnosis.findings]]

    url = f"{bucket}/team/big"
    seen: dict[str, Any] = {"here": facts(str(directory))}
    seen["stored"] = sum(path.stat().st_size for path in directory.iterdir())
    server.sent = 0
    seen["there"] = facts(url)
    seen["sent"] = server.sent
    seen["tie"] = seen["there"][0]
    checkpoint = open_checkpoint(url)
    server.sent = 0
    seen["rows"] = list(checkpoint.rows("model.layers.2.mlp.up_proj.weight", 4000, 4002).shape)
    seen["sent_for_rows"] = server.sent
    seen["missing"] = error_of(open_checkpoint, f"{bucket}/nothing")
    command, local = download_command(url)
    where = directory.parent / "downloads"
    where.mkdir()
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, cwd=where, check=True)
    seen["downloaded"] = str(tiebeam.inspect(where / local).tie)
    server.forbid = True
    seen["forbidden"] = error_of(open_checkpoint, url)
    server.forbid = False
    return seen


def finish(seen: dict[str, Any]) -> None:
    """Print, and skip interpreter shutdown: the file systems and the server have threads."""
    print(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)
