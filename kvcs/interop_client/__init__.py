"""`moqt-interop-client`: tests of any MOQT relay, for the public moq-interop-runner.

It follows that runner's contract for test clients: what to test comes by arguments or environment,
the result goes out as TAP version 14, and the exit code says whether all passed.
"""
