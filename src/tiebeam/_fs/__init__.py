"""File system: atomic writes, staging directories, directory locks and byte comparison, each written once."""

from tiebeam._fs.atomic import atomic_path, explaining, flush_path, write_bytes, write_json, write_text
from tiebeam._fs.compare import Fingerprints, first_difference, read_into
from tiebeam._fs.lock import DirectoryLock, lock_directory
from tiebeam._fs.stage import Stage, check_space, check_target, exchange, flushing, staging

__all__ = [
    "DirectoryLock",
    "Fingerprints",
    "Stage",
    "atomic_path",
    "check_space",
    "check_target",
    "exchange",
    "explaining",
    "first_difference",
    "flush_path",
    "flushing",
    "lock_directory",
    "read_into",
    "staging",
    "write_bytes",
    "write_json",
    "write_text",
]
