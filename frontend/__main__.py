"""`python -m frontend`: one frontend process."""

import sys

from frontend.process import main

sys.exit(main())
