"""What both ends know beforehand; peers' scripts find its modules by PYTHONPATH."""
