"""MOQT sessions on asyncio and aioquic; the names to use are in `moqt` itself."""
