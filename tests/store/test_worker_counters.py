"""What workers have counted, as the store server shows it: nothing ever goes back while the store server lives."""

from pathlib import Path

from store.worker_counters import COUNTERS_FILE, METRICS, WorkerCounters, prometheus_lines, write_counters


def _worker(spools: Path, name: str, **counts: int) -> Path:
    spool = spools / name
    spool.mkdir(parents=True, exist_ok=True)
    write_counters(spool, {key.replace("__", "/"): n for key, n in counts.items()})
    return spool


def test_workers_are_added_up_and_stay_so_when_they_are_gone(tmp_path: Path) -> None:
    counted = WorkerCounters(tmp_path)
    first = _worker(tmp_path, "worker-1", answers__miss=2, errors__dns_failed=1)
    _worker(tmp_path, "worker-2", answers__miss=3)
    assert counted.total() == {"answers/miss": 5, "errors/dns_failed": 1}
    counted.retire_spool(first)
    counted.retire_spool(first)
    assert not (first / COUNTERS_FILE).exists()
    _worker(tmp_path, "worker-2", answers__miss=4)
    assert counted.total() == {"answers/miss": 6, "errors/dns_failed": 1}


def test_a_spool_that_has_counted_nothing_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "worker-1").mkdir()
    counted = WorkerCounters(tmp_path)
    counted.retire_spool(tmp_path / "worker-1")
    assert not counted.total()


def test_a_count_that_a_machine_lost_as_it_went_down_is_no_trouble(tmp_path: Path) -> None:
    spool = _worker(tmp_path, "worker-1", answers__miss=2)
    (spool / COUNTERS_FILE).write_bytes(b"")
    counted = WorkerCounters(tmp_path)
    counted.retire_spool(spool)
    assert not counted.total()


def test_what_may_be_watched_is_there_before_it_happens() -> None:
    lines = prometheus_lines({})
    assert 'playhead_proxy_answers_total{standing="miss"} 0' in lines
    assert [line.split()[2] for line in lines if line.startswith("# TYPE")] == [
        f"playhead_proxy_{name}_total" for name in METRICS
    ]


def test_each_counter_stands_below_its_metric() -> None:
    lines = prometheus_lines({"handed_over/upgrade": 7, "connections/mitmproxy": 8})
    assert lines[lines.index('playhead_proxy_handed_over_total{reason="upgrade"} 7') - 1].startswith(
        "# TYPE playhead_proxy_handed_over_total counter"
    )
    assert 'playhead_proxy_connections_total{to="mitmproxy"} 8' in lines
