"""A client that answers what it is told to answer, or ends: `python -m tests.telling_client WORD`."""

from __future__ import annotations

import json
import sys

if __name__ == "__main__":
    for line in sys.stdin:
        if json.loads(line) is None:
            sys.exit(3)
        print(json.dumps({"word": sys.argv[1]} | json.loads(line)), flush=True)
