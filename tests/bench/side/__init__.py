"""The processes of a round: each module here is one end of one transfer, run with `python -m`."""
