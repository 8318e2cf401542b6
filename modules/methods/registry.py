"""The methods there are, by name: of each row in modules/config/methods.py the file of that name beside this one."""

from importlib import import_module

from modules.config.methods import METHODS as FACTS
from modules.methods.Method import Method

METHODS: dict[str, Method] = {name: import_module(f"modules.methods.{name}").METHOD for name in FACTS}
