"""The check of logits processors for plugin authors says yes and no, each for the right reason."""

import pytest
import torch

from quire.records import LogitsProcessor
from quire_testing import check_logits_processor


class Damp:
    """Lowers the last token by a strength."""

    def __init__(self, context) -> None:
        pass

    def start(self, params):
        return params.extra.get("damp")

    def apply(self, logits, rows):
        for i, row in enumerate(rows):
            if row.output_ids:
                logits[i, row.output_ids[-1]] -= row.state


def processor(build) -> LogitsProcessor:
    return LogitsProcessor("damp", {"damp": float}, build)


def test_a_right_processor_passes() -> None:
    check_logits_processor(processor(Damp), {"damp": 2.0})


class Always(Damp):
    def start(self, params):
        return 1.0


class Copies(Damp):
    def apply(self, logits, rows):
        return logits - 1


class Averages(Damp):
    def apply(self, logits, rows):
        if len(rows):
            logits -= logits.mean()


class ByPlace(Damp):
    def apply(self, logits, rows):
        for i in range(len(rows)):
            logits[i, 0] -= 0 if len(rows) == 1 else i


class Forgets(Damp):
    seen = 0

    def apply(self, logits, rows):
        Forgets.seen += 1
        logits += Forgets.seen


class ForbidsAll(Damp):
    def apply(self, logits, rows):
        logits.fill_(-torch.inf)


class NotANumber(Damp):
    def apply(self, logits, rows):
        logits.fill_(-torch.inf).sub_(-torch.inf)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (Always, "start must give None for a request without its fields"),
        (Copies, "in place and give nothing"),
        (Averages, "depend on which rows"),
        (ByPlace, "depend on"),
        (Forgets, "depend on which rows"),
        (ForbidsAll, "without any possible token"),
        (NotANumber, "depend on which rows|makes NaN"),
    ],
)
def test_a_wrong_processor_is_noticed(build, sentence: str) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check_logits_processor(processor(build), {"damp": 2.0})
