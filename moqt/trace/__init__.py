"""Octets of streams as values with names, whoever sends them: for traces and tools."""
