"""The parts of scripts/setup_env.py. Standard library only, and nothing that Python 3.6 cannot parse."""
