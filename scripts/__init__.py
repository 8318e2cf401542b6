"""What people and schedulers start.

A package of its own: without this file, one called scripts among the system's packages would be found in its place.
"""
