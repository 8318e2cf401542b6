"""Warns of a store of the ranks that other machines can connect to."""

from __future__ import annotations

from modules.config.installation import IS_INSTALLED, PACKAGE, docs_page
from modules.distributed.environments import RankEnvironment
from modules.machine.listening import open_ports_of_host

PAGE = f'{docs_page("multi_gpu")}, "What listens, and to whom"'


def open_store_warning(environment: RankEnvironment) -> str:
    """One line on where the store listens and what to do about it; "" if only this machine can connect to it.

    To be asked on the rank whose machine has the store. torch's own stores listen on all network interfaces, whatever
    address they are given. With the c10d rendezvous, torchrun's agent has two: the one that it shares with the ranks,
    and one whose values it unpickles.
    """
    ports = open_ports_of_host(environment.master_port)
    if not ports:
        return ""
    where = f"port {ports[0]}" if len(ports) == 1 else f"ports {' and '.join(map(str, ports))}"
    harm = "disturb this run" if len(ports) == 1 else "disturb this run and, if the rendezvous is c10d, run code as you"
    owner = environment.name if environment.has_store else "The first rank"
    found = f"{owner} listens on {where} of all network interfaces, where others can {harm}"
    if environment.num_nodes > 1:
        return f"{found}: have a firewall let only the machines of this run through ({PAGE})."
    agent = f"-m {PACKAGE}.scripts.elastic_agent" if IS_INSTALLED else "scripts/elastic_agent.py"
    return f"{found}: start with `python {agent}` instead of {environment.name}, or have a firewall block it ({PAGE})."
