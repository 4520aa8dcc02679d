"""Run tiebeam on a model in a local server with Google Cloud Storage's JSON API, in the environment `gcs`.

python observe_gcs.py DIRECTORY
"""

import os
import sys
from pathlib import Path

from bucket_facts import finish, observe
from gcs_server import Bucket

if __name__ == "__main__":
    directory = Path(sys.argv[1])
    server = Bucket(directory, "team/big")
    os.environ["STORAGE_EMULATOR_HOST"] = server.url
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"  # it asks Google by gRPC what kind of bucket this is
    finish(observe(directory, server, "gs://models"))
