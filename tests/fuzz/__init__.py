"""Coverage-guided fuzzing of every parser entry: `make fuzz`.

`targets` has one function for each entry: octets in, and an error only if something is wrong with
the parser. `corpus/` has a few seeds for each (made by `seeds` from the golden vectors, and what
once failed); pytest runs them all. `python -m tests.fuzz` looks for more with atheris.
"""
