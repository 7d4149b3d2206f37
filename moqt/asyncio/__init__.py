"""asyncio."""
