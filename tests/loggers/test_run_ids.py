"""Which run of a service a run folder belongs to."""

from concurrent.futures import ThreadPoolExecutor

from modules.loggers.run_ids import read_run_id, write_run_id

SERVICES = [f"service {number}" for number in range(32)]


def test_loggers_that_start_together_keep_each_others_runs(tmp_path):
    with ThreadPoolExecutor(len(SERVICES)) as threads:
        list(threads.map(lambda service: write_run_id(tmp_path, service, service.upper()), SERVICES))
    assert [read_run_id(tmp_path, service) for service in SERVICES] == [service.upper() for service in SERVICES]
