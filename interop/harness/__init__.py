"""What all cases share: their stage, the peers' processes, the expected results, the matrix."""
