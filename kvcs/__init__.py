"""kvcs."""
