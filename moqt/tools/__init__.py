"""Programs for looking at MOQT: `python -m moqt.tools.probe` and `python -m moqt.tools.dump`."""
