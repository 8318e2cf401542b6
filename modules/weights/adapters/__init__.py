"""The kinds of adapters: each row in modules/config/adapters.py has a file of that name."""
