"""Tests of any MOQT relay, as the public moq-interop-runner asks for them.

Its contract for test clients: what to test comes by arguments or environment, the result goes out
as TAP version 14, and the exit code says whether all passed.
"""
