"""File system: atomic writes, staging, target checks, locks and byte comparison, each written once."""

from tiebeam._fs.atomic import atomic_path, flush_path, write_bytes, write_json, write_text
from tiebeam._fs.compare import Fingerprints, first_difference, read_into
from tiebeam._fs.lock import DirectoryLock, lock_directory
from tiebeam._fs.os_errors import explaining, reading, unforeseen
from tiebeam._fs.stage import Stage, exchange, flushing, staging, undo_exchange
from tiebeam._fs.targets import Kind, check_replaceable, check_space, check_target
from tiebeam._fs.working_directory import occupy

__all__ = [
    "DirectoryLock",
    "Fingerprints",
    "Kind",
    "Stage",
    "atomic_path",
    "check_replaceable",
    "check_space",
    "check_target",
    "exchange",
    "explaining",
    "first_difference",
    "flush_path",
    "flushing",
    "lock_directory",
    "occupy",
    "read_into",
    "reading",
    "staging",
    "undo_exchange",
    "unforeseen",
    "write_bytes",
    "write_json",
    "write_text",
]
