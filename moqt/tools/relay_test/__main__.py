"""`python -m moqt.tools.relay_test`: the tests that need nothing but MOQT."""

import sys

from moqt.tools.pipes import until_reader_goes
from moqt.tools.relay_test.cases import CASES
from moqt.tools.relay_test.main import main

sys.exit(until_reader_goes(lambda: main(CASES)))
