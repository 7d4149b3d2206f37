"""The bulk path: 1-RTT packets of STREAM frames by the batch; all else is aioquic's own code."""
