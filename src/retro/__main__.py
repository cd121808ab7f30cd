"""`python -m retro` is `retro`."""

import sys

from retro.cli.main import main

sys.exit(main())
