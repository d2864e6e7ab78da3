"""Two machines on one: network namespaces with an address each, and a link between them that can be cut."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torchckn.launch import BEAT, GRACE, SILENCE

from .faults.harness import environment
from .test_launch import command, difference, finished, train, wait_for_step

pytestmark = pytest.mark.slow

HOSTS = ("ckn-left", "ckn-right")
ADDRESSES = ("10.77.113.1", "10.77.113.2")
LINKS = ("ckn-l", "ckn-r")
#: seconds in which a process looks for the others after the time-out, and two more
MARGIN = BEAT + SILENCE + GRACE + 2


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two network namespaces with a link between them."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command: install iproute2")
    try:
        for host in HOSTS:
            ip("netns", "add", host)
        ip("link", "add", LINKS[0], "netns", HOSTS[0], "type", "veth", "peer", "name", LINKS[1], "netns", HOSTS[1])
        for host, link, address in zip(HOSTS, LINKS, ADDRESSES, strict=True):
            ip("-n", host, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", host, "link", "set", link, "up")
            ip("-n", host, "link", "set", "lo", "up")
    except OSError as error:
        remove_hosts()
        pytest.skip(f"network namespaces are not allowed here: {error}")
    yield
    remove_hosts()


def remove_hosts() -> None:
    for host in HOSTS:
        subprocess.run(["ip", "netns", "del", host], capture_output=True)


def start(number: int, arguments: list[str], port: int) -> subprocess.Popen[str]:
    """torchrun on one of the two hosts, with one process."""
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", "--node-rank", str(number)]
    torchrun += ["--master-addr", ADDRESSES[0], "--master-port", str(port), "--local-addr", ADDRESSES[number]]
    env = environment() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": LINKS[number]}
    line = ["ip", "netns", "exec", HOSTS[number], sys.executable, *torchrun, "-m", "torchckn", *arguments]
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def stop(running: list[subprocess.Popen[str]]) -> None:
    """Kill whatever runs on the two hosts; torchrun gives its processes sessions of their own."""
    for host in HOSTS:
        for pid in subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True).stdout.split():
            os.kill(int(pid), signal.SIGKILL)
    for process in running:
        process.communicate()


def seconds_until(running: subprocess.Popen[str], text: str, clock: float) -> float:
    """When the process has said this, in seconds; infinity if it never does."""
    assert running.stderr is not None
    said, when = "", float("inf")
    for line in running.stderr:
        said += line.replace("\n", " ")
        if text in said:
            when = min(when, time.monotonic() - clock)
    return when


def test_two_hosts_give_the_weights_of_one_and_a_cut_link_ends_both_and_the_run_resumes(
    tmp_path: Path, few_digits: Path, hosts: None
) -> None:
    assert finished(command(train(tmp_path / "one", few_digits)))[0] == 0
    two = [start(number, train(tmp_path / "two", few_digits), 29711) for number in (0, 1)]
    for running in two:
        _, err = running.communicate(timeout=300)
        assert running.returncode == 0, err
    assert difference(tmp_path / "one", tmp_path / "two") < 1e-6

    run, timeout = tmp_path / "cut", 15
    cut = [start(number, [*train(run, few_digits, 100_000), "--timeout", str(timeout)], 29712) for number in (0, 1)]
    try:
        wait_for_step(run, 3, cut[0])
        ip("-n", HOSTS[1], "link", "set", LINKS[1], "down")
        clock = time.monotonic()
        with ThreadPoolExecutor() as threads:
            said = [*threads.map(lambda running: seconds_until(running, "torchckn train --resume", clock), cut)]
        assert all(seconds <= timeout + MARGIN for seconds in said), said
        print(f"the link was cut, the time-out is {timeout} s: messages after {said[0]:.1f} and {said[1]:.1f} s")
        assert all(running.wait(timeout=timeout + 150) for running in cut)  # and the time in which torchrun ends
    finally:
        stop(cut)
    steps = len((run / "metrics.jsonl").read_bytes().splitlines())
    ip("-n", HOSTS[1], "link", "set", LINKS[1], "up")
    more = ["train", "--resume", str(run), "--steps", "100001", "--timeout", str(timeout)]
    again = [start(number, more, 29713) for number in (0, 1)]
    try:
        wait_for_step(run, steps + 2, again[0])
    finally:
        stop(again)
