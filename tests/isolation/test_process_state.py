"""What /proc says of processes: stopped, gone, computing."""

import os
import signal
import subprocess
import sys

import pytest

from quire.isolation.process_state import cpu_seconds, is_stopped, thread_states

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="there is no /proc")

ONE_SLEEPS = """
import threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print(1, flush=True)
while True: pass
"""


def test_a_process_is_seen_stopped_continued_and_gone():
    process = subprocess.Popen(["sleep", "60"])
    assert not is_stopped(process.pid)
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)
    assert is_stopped(process.pid)
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    assert (is_stopped(process.pid), thread_states(process.pid), cpu_seconds(process.pid)) == (False, frozenset(), None)


def test_the_states_of_all_threads_are_seen():
    with subprocess.Popen([sys.executable, "-c", ONE_SLEEPS], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        seen = set()
        while not {"R", "S"} <= seen:
            seen = thread_states(process.pid)
        while cpu_seconds(process.pid) == 0:
            pass
        process.kill()
