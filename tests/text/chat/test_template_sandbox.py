"""Templates render in a process without rights, and hostile ones are stopped."""

import io
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_templates import USER, chat

from quire.errors import BadRequest, Overloaded
from quire.isolation.child_process import ChildProcess
from quire.text.chat import template_worker as sandbox
from quire.text.chat.template_pool import TemplatePool

pytestmark = pytest.mark.process

# --- hostile templates -----------------------------------------------------------------------------

HOSTILE = {
    "attribute": ("{{ ''.__class__.__mro__ }}", "may not do"),
    "globals": ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "may not do"),
    "mutation": ("{{ messages.append(1) }}", "may not do"),
    "private name": ("{% set ns = namespace(__class__=1) %}", "may not do"),
    "private name set later": ("{% set ns = namespace() %}{% set ns.__y = 1 %}", "may not do"),
    "memory": ("{{ 'a' * 10**10 }}", "too much memory"),
    "format": ("{{ '%9999999999d' % 1 }}", "too much memory"),
    "output": ("{% for i in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "wrote more than"),
    "recursion": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too deeply"),
    "nesting": ("{% if 1 %}" * 3000 + "{% endif %}" * 3000, "too deeply"),
    "parentheses": ("{{ " + "(" * 50000 + ")" * 50000 + " }}", "too deeply"),
    "file": ("{% include '/etc/passwd' %}", "failed"),
    "undefined": ("{{ nothing.here }}", "undefined"),
    "syntax": ("{% if %}", "line 1"),
    "raise": ("{{ raise_exception('roles must alternate') }}", "failed: roles must alternate"),
    "types": ("{{ 'a' + 1 }}", "failed"),
    "range": ("{% for i in range(10**9) %}{% endfor %}", "failed"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_wrong_template_is_a_bad_request(name: str, renderer: TemplatePool) -> None:
    template, message = HOSTILE[name]
    with pytest.raises(BadRequest, match=message):
        chat(renderer).render([USER], template=template)
    assert chat(renderer).render([USER], template="still here") == "still here"


def test_a_template_that_loops_is_stopped_and_the_next_one_renders() -> None:
    hurried = TemplatePool(timeout_s=0.3, max_processes=1)
    loops = [f"{{% for {name} in range(99999) %}}" for name in "ijk"]
    endless = "".join(loops) + "{% endfor %}" * len(loops)
    doubling = "{% set ns = namespace(s='aaaa') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
    for template in (endless, doubling):
        with pytest.raises(BadRequest, match=r"longer than 0.3 seconds|memory"):
            hurried.render(template, {})
    patient = TemplatePool(max_processes=1)
    assert patient.render("{{ 1 }}", {}) == "1"
    for one in (hurried, patient):
        one.close()
        one.close()


def test_only_so_many_templates_render_at_once() -> None:
    busy = TemplatePool(timeout_s=0.2, max_processes=1)
    holds, released = threading.Event(), threading.Event()
    take = busy._acquire_process

    def slow_take() -> Any:
        holds.set()
        released.wait()
        return take()

    busy._acquire_process = slow_take  # type: ignore[method-assign]
    outcome: list[str] = []

    def first() -> None:
        try:
            busy._ask({"template": "x", "context": {}, "max_chars": 9})
        except BadRequest as error:  # this machine may be slow
            outcome.append(str(error))

    thread = threading.Thread(target=first)
    thread.start()
    holds.wait()
    with pytest.raises(Overloaded, match="busy"):
        busy.render("y", {})
    released.set()
    thread.join()
    busy.close()


def test_a_renderer_whose_process_was_killed_starts_another() -> None:
    renderer = TemplatePool()
    assert renderer.render("a", {}) == "a"
    (process,) = renderer._idle
    process._process.kill()
    process._process.wait()
    with pytest.raises(BadRequest, match="crashed"):
        renderer.render("b", {})
    assert renderer.render("c", {}) == "c"
    renderer.close()


def test_a_process_that_started_while_the_pool_was_closed_is_ended() -> None:
    pool = TemplatePool()
    started: list[ChildProcess] = []
    acquire = pool._acquire_process

    def acquire_late() -> ChildProcess:
        pool.close()
        started.append(acquire())
        return started[0]

    pool._acquire_process = acquire_late  # type: ignore[method-assign]
    assert pool.render("a", {}) == "a"
    assert started[0]._process.returncode is not None
    assert not pool._idle


def test_the_sandbox_process_has_no_secrets_and_can_write_no_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    renderer = TemplatePool()
    renderer.render("", {})
    (process,) = renderer._idle
    environment = Path(f"/proc/{process._process.pid}/environ").read_bytes()
    limits = Path(f"/proc/{process._process.pid}/limits").read_text()
    renderer.close()
    assert b"hunter2" not in environment
    assert [line.split()[3] for line in limits.splitlines() if line.startswith("Max file size")] == ["0"]


# --- the process from inside -----------------------------------------------------------------------


def test_the_script_answers_frames_until_its_input_ends() -> None:
    job = {"template": "{{ x }}!", "context": {"x": "é"}, "max_chars": 9}
    script = [sys.executable, "-B", "-P", sandbox.__file__, str(1 << 30), "5"]
    done = subprocess.run(script, input=sandbox.frame(job) * 2, capture_output=True, check=True)
    out = io.BytesIO(done.stdout)
    replies = []
    while (body := sandbox.read_frame(out)) is not None:
        replies.append(json.loads(body))
    assert replies == ["ready", {"text": "é!"}, {"text": "é!"}]


def test_a_process_whose_parent_is_gone_does_not_loop_for_ever() -> None:
    loops = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    script = [sys.executable, "-B", "-P", sandbox.__file__, str(1 << 30), "0"]
    job = sandbox.frame({"template": loops, "context": {}, "max_chars": 9})
    done = subprocess.run(script, input=job, capture_output=True, check=False)
    assert done.returncode == -signal.SIGXCPU


def test_few_compiled_templates_are_kept() -> None:
    compiler = sandbox.Compiler()
    first = compiler.get("0")
    assert compiler.get("0") is first
    for number in range(1, sandbox.MAX_COMPILED + 1):
        compiler.get(str(number))
    assert compiler.get("0") is not first
    assert sandbox.reply_to(
        compiler, {"template": "{{ strftime_now('%Y') | length }}", "context": {}, "max_chars": 9}
    ) == {"text": "4"}
