"""Cases against moq-rs."""

from interop.harness.cases import Registry

CASES = Registry()
