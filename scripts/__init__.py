"""The programs that users and schedulers start.

This file makes the folder a regular package; otherwise an installed package called `scripts` would take precedence.
"""
