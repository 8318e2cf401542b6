"""All methods by name. Each row in modules/config/methods.py has a file of that name in this folder."""

from importlib import import_module

from modules.config.methods import METHODS as FACTS
from modules.methods.Method import Method

METHODS: dict[str, Method] = {name: import_module(f"{__package__}.{name}").METHOD for name in FACTS}
