"""``python -m tests.faults.finishing``: one process that carries out commands, each a line of JSON, and says how each ended.

To start a process takes seconds, and a run that was killed can be finished by one that is there already.
"""

from __future__ import annotations

import json
import sys

from torchckn import cli


def main() -> None:
    for line in sys.stdin:
        sys.argv = ["torchckn", *json.loads(line)]
        status: object = 0
        try:
            cli.main()
        except SystemExit as end:
            status = end.code or 0
        print(json.dumps(status), flush=True)


if __name__ == "__main__":
    main()
