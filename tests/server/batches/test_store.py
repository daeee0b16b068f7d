"""The journal: whatever happens in whatever order, and wherever the process ends, each line has one answer."""

import shutil
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from quire_batches.lines import check_lines, read_lines
from quire_batches.records import Result, StoredBatch, StoredFile
from quire_batches.store import BatchStore

NUM_LINES = 12
BATCHES = ("batch_a", "batch_b")


def batch(batch_id):
    return StoredBatch(
        id=batch_id,
        owner="o",
        endpoint="/v1/completions",
        input_file_id="file-in",
        completion_window="24h",
        created_at=0,
        expires_at=100,
        status="in_progress",
        total=NUM_LINES,
    )


class Journal(RuleBasedStateMachine):
    """A store beside a model of it. A crash leaves the files of the database as they are at that moment."""

    def __init__(self):
        super().__init__()
        self.scratch = TemporaryDirectory()
        self.folder = Path(self.scratch.name) / "0"
        self.folder.mkdir()
        self.store = BatchStore(self.folder / "state.db")
        for batch_id in BATCHES:
            self.store.batches.add(batch(batch_id))
        self.known = {batch_id: {} for batch_id in BATCHES}
        self.done = {}

    @rule(
        rows=st.lists(
            st.tuples(st.sampled_from(BATCHES), st.integers(1, NUM_LINES), st.booleans(), st.binary(max_size=9))
        )
    )
    def answer(self, rows):
        rows = [row for row in rows if row[0] not in self.done]
        self.store.add_results([Result(*row) for row in rows])
        for batch_id, number, is_good, content in rows:
            self.known[batch_id].setdefault(number, (is_good, content))

    @rule(batch_id=st.sampled_from(BATCHES))
    def finish(self, batch_id):
        if batch_id in self.done:
            return
        with self.store.answers(batch_id) as answers:
            found = [(number, (good, content)) for number, good, content in answers]
        assert found == sorted(self.known[batch_id].items())
        file = StoredFile(
            id=f"file-{batch_id}", owner="o", purpose="batch_output", filename="f", num_bytes=7, created_at=1
        )
        self.store.finish(self.store.batches.get(batch_id).moved("completed", output_file_id=file.id), [file])
        self.done[batch_id] = self.known[batch_id]
        self.known[batch_id] = {}

    @rule()
    def fail_midway(self):
        """A transaction that raises leaves no trace."""
        left = [batch_id for batch_id in BATCHES if batch_id not in self.done]
        if left:
            rows = iter([Result(left[0], 1, True, b"lost"), None])
            with pytest.raises(AttributeError):
                self.store.add_results(rows)

    @rule()
    def crash(self):
        """Killed: a copy of the files as they are, with the write-ahead log, is opened by the next process."""
        after = self.folder.with_name(str(int(self.folder.name) + 1))
        shutil.copytree(self.folder, after)
        self.store.close()
        self.folder = after
        self.store = BatchStore(after / "state.db")

    @invariant()
    def agrees(self):
        for batch_id in BATCHES:
            found, answers = self.store.batches.get(batch_id), self.done.get(batch_id, self.known[batch_id])
            assert self.store.answered(batch_id) == set(self.known[batch_id])
            good = sum(is_good for is_good, _ in answers.values())
            assert (found.completed, found.failed) == (good, len(answers) - good)
            assert (found.status == "completed") is (batch_id in self.done)
        assert {file.id for file in self.store.files.all()} == {f"file-{batch_id}" for batch_id in self.done}
        unfinished = sum(len(content) for answers in self.known.values() for _, content in answers.values())
        assert self.store.num_bytes == unfinished + 7 * len(self.done)

    def teardown(self):
        self.store.close()
        self.scratch.cleanup()


Journal.TestCase.settings = settings(max_examples=25, stateful_step_count=12, deadline=None, derandomize=True)
TestJournal = Journal.TestCase


def test_pages_follow_the_order_of_creation(tmp_path):
    with closing(BatchStore(tmp_path / "state.db")) as store:
        for i in range(5):
            store.batches.add(batch(f"b{i}"))
        assert [one.id for one in store.batches.of("o", None, ascending=False)] == ["b4", "b3", "b2", "b1", "b0"]
        assert [one.id for one in store.batches.of("o", "b2", ascending=True)] == ["b3", "b4"]
        assert list(store.batches.of("other", None, ascending=True)) == []


def test_lines_are_read_with_their_numbers_and_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("quire_batches.lines.MAX_LINE_BYTES", 10)
    monkeypatch.setattr("quire_batches.lines.SKIPPED_BYTES", 4)
    file = tmp_path / "f"
    file.write_bytes(b"one\n\n  \r\n" + b"x" * 100 + b"\nfive\r\nsix")
    assert list(read_lines(file)) == [(1, b"one\n"), (4, b"x" * 11), (5, b"five\r\n"), (6, b"six")]


def test_a_huge_line_is_refused_by_its_number(tmp_path, monkeypatch):
    monkeypatch.setattr("quire_batches.lines.MAX_LINE_BYTES", 100)
    monkeypatch.setattr("quire.types.batch_line.MAX_LINE_BYTES", 100)
    file = tmp_path / "f"
    good = b'{"custom_id": "a", "method": "POST", "url": "/tokenize", "body": {}}\n'
    file.write_bytes(good + b"x" * 5000 + b"\n")
    (error,) = check_lines(file, "/tokenize", 10).errors
    assert (error.line, error.message) == (2, "The line has more than 100 bytes.")


def test_not_more_than_a_hundred_errors_are_reported(tmp_path):
    file = tmp_path / "f"
    file.write_bytes(b"no\n" * 1000)
    assert len(check_lines(file, "/tokenize", 5000).errors) == 100
