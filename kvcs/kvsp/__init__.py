"""kvsp."""
