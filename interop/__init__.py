"""This project's implementation against others, case by case: see README.md."""
