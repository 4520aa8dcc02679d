"""Run tiebeam on a model in moto's S3 server, in the environment `s3`; print what happened as JSON.

python observe_s3.py DIRECTORY
"""

import os
import sys
import threading
from pathlib import Path

import boto3
from bucket_facts import error_of, finish, observe
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

    from tiebeam.checkpoint import open_checkpoint

    seen = observe(directory, application, "s3://models")
    for name in SECRETS:
        del os.environ[name]
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    seen["without_credentials"] = error_of(open_checkpoint, "s3://models/team/big")
    finish(seen)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
