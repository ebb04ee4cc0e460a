"""`python -m timeline COMMAND`."""

import sys

from timeline import collect

sys.exit(collect.main(sys.argv[2:]))
