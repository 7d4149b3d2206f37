"""The one draft of MOQT that this package speaks."""

DRAFT = 22
ALPN = "moqt-22"
