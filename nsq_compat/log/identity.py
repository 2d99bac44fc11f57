"""The name of a data path in mirroring: a random identity, and an epoch that grows with each start."""

import json
import os
from dataclasses import asdict, dataclass, field

from nsq_compat.log.data_path import our_folder
from nsq_compat.log.files import Files, read_file, replace_file

_FILE = "identity"


@dataclass
class Identity:
    """`forgotten` has, by the identity of a standby, its last take-over whose messages this nsqd has forgotten."""

    identity: str = ""
    epoch: int = 0
    forgotten: dict[str, str] = field(default_factory=dict)

    def save(self, files: Files, data_path: str) -> None:
        """Raises ``OSError``."""
        text = json.dumps(asdict(self), indent=1)
        replace_file(files, os.path.join(our_folder(data_path), _FILE), text.encode("utf-8"), sync=True)


def begin_epoch(files: Files, data_path: str) -> Identity:
    """The identity of a data path, in a new epoch. Raises ``OSError``, and ``ValueError`` if its file is damaged."""
    try:
        found = Identity(**json.loads(read_file(files, os.path.join(our_folder(data_path), _FILE))))
    except FileNotFoundError:
        found = Identity(os.urandom(16).hex())
    except TypeError as error:
        raise ValueError(str(error)) from None
    found.epoch += 1
    found.save(files, data_path)
    return found
