"""Cases against aiomoqt (Python, picoquic)."""
