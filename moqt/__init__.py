"""moqt."""
