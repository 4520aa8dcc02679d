"""Run tiebeam on a model in moto's S3 server, in the environment `s3`; print what happened as JSON.

python observe_s3.py DIRECTORY
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

SECRETS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}


class Counted:
    """A WSGI application that counts the bytes of its answers."""

    def __init__(self, application):
        self.application, self.sent, self.forbid = application, 0, False

    def __call__(self, environ, start_response):
        if self.forbid:
            body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
            start_response("403 Forbidden", [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [] if environ["REQUEST_METHOD"] == "HEAD" else [body]
        return self._counting(self.application(environ, start_response))

    def _counting(self, answer):
        for block in answer:
            self.sent += len(block)
            yield block


def error_of(function, *arguments):
    from tiebeam.errors import TiebeamError

    try:
        function(*arguments)
    except TiebeamError as error:
        return str(error)
    return ""


def main(directory: Path) -> None:
    application = Counted(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    os.environ.update(SECRETS, AWS_ENDPOINT_URL=url, AWS_CONFIG_FILE=os.devnull, AWS_EC2_METADATA_DISABLED="true")
    client = boto3.client("s3", endpoint_url=url)
    client.create_bucket(Bucket="models")
    for path in sorted(directory.iterdir()):
        client.upload_file(str(path), "models", f"team/big/{path.name}")

    import tiebeam
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.checkpoint.download import download_command

    def facts(source):
        diagnosis = tiebeam.diagnose(source)
        document = diagnosis.report.to_dict()
        return [document["tie"], document["params"], [finding.code for finding in diagnosis.findings]]

    seen = {"here": facts(str(directory)), "stored": sum(path.stat().st_size for path in directory.iterdir())}
    application.sent = 0
    seen["there"] = facts("s3://models/team/big")
    seen["sent"] = application.sent
    seen["tie"] = seen["there"][0]
    checkpoint = open_checkpoint("s3://models/team/big")
    application.sent = 0
    seen["rows"] = list(checkpoint.rows("model.layers.2.mlp.up_proj.weight", 4000, 4002).shape)
    seen["sent_for_rows"] = application.sent
    seen["missing"] = error_of(open_checkpoint, "s3://models/nothing")
    command, local = download_command("s3://models/team/big")
    where = directory.parent / "downloads"
    where.mkdir()
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, cwd=where, check=True)
    seen["downloaded"] = str(tiebeam.inspect(where / local).tie)
    application.forbid = True
    seen["forbidden"] = error_of(open_checkpoint, "s3://models/team/big")
    application.forbid = False
    for name in SECRETS:
        del os.environ[name]
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    seen["without_credentials"] = error_of(open_checkpoint, "s3://models/team/big")
    print(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)  # threads of s3fs and the server


if __name__ == "__main__":
    main(Path(sys.argv[1]))
