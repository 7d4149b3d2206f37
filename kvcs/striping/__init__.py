"""One retrieval over several sessions, in one process or in several."""
