"""File system: atomic writes, staging, target checks, locks and byte comparison, each written once."""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam._fs.atomic import atomic_path, flush_path, write_bytes, write_json, write_text
    from tiebeam._fs.compare import Fingerprints, first_difference, read_into
    from tiebeam._fs.disk_space import reserve, start_writeback
    from tiebeam._fs.lock import DirectoryLock, lock_directory
    from tiebeam._fs.os_errors import explaining, reading, unforeseen
    from tiebeam._fs.stage import Stage, exchange, staging, undo_exchange
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
    "lock_directory",
    "occupy",
    "read_into",
    "reading",
    "reserve",
    "staging",
    "start_writeback",
    "undo_exchange",
    "unforeseen",
    "write_bytes",
    "write_json",
    "write_text",
]

__getattr__ = loader(
    __name__,
    {
        "DirectoryLock": "tiebeam._fs.lock",
        "Fingerprints": "tiebeam._fs.compare",
        "Kind": "tiebeam._fs.targets",
        "Stage": "tiebeam._fs.stage",
        "atomic_path": "tiebeam._fs.atomic",
        "check_replaceable": "tiebeam._fs.targets",
        "check_space": "tiebeam._fs.targets",
        "check_target": "tiebeam._fs.targets",
        "exchange": "tiebeam._fs.stage",
        "explaining": "tiebeam._fs.os_errors",
        "first_difference": "tiebeam._fs.compare",
        "flush_path": "tiebeam._fs.atomic",
        "lock_directory": "tiebeam._fs.lock",
        "occupy": "tiebeam._fs.working_directory",
        "read_into": "tiebeam._fs.compare",
        "reading": "tiebeam._fs.os_errors",
        "reserve": "tiebeam._fs.disk_space",
        "staging": "tiebeam._fs.stage",
        "start_writeback": "tiebeam._fs.disk_space",
        "undo_exchange": "tiebeam._fs.stage",
        "unforeseen": "tiebeam._fs.os_errors",
        "write_bytes": "tiebeam._fs.atomic",
        "write_json": "tiebeam._fs.atomic",
        "write_text": "tiebeam._fs.atomic",
    },
)
