"""`bench quality`: how well a model predicts a text, and how far its predictions are from those of a reference model.

The tokens of the text are divided into windows, each a prompt of its own. Tokens of the second half of a window are
scored, so every scored token has at least half a window before it. `llama-perplexity` of llama.cpp does the same, so
its figures for the same text can be compared with these.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.engine_process.engine_builder import tokenizer_of
from quire.errors import ConfigError, from_wire
from quire.params.sampling import SamplingParams
from quire.records import OpImpl, Registry
from quire.types import Prompt, Request
from quire_bench.docstrings import documentation_strings
from quire_bench.offline import add_model_flags, config_of, engine_of
from quire_bench.report import percentile, show_table, write_json
from quire_bench.workload import at_least

if TYPE_CHECKING:
    from torch import Tensor

    from quire.text.tokenizer.tokenizer import Tokenizer

_OF_BOTH = ("dtype", "device", "trust_remote_code")
"""Settings that the reference has from the command line; the others have their defaults."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--text", metavar="FILE", help="text to predict (default: the docstrings of Python's standard library)"
    )
    parser.add_argument("--save-text", metavar="FILE", help="write the text to this file, for other programs")
    parser.add_argument("--windows", type=at_least(1), default=40, help="maximum number of windows to score")
    parser.add_argument("--window-len", type=at_least(4), default=512, help="number of tokens in a window")
    parser.add_argument(
        "--reference", metavar="MODEL", help="also compute the KL divergence from this model's distributions"
    )
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Prints the perplexity and, if there is a reference, the distance from it. Raises StartupError."""
    text = _text_of(args.text) if args.text else documentation_strings()
    if args.save_text:
        Path(args.save_text).write_text(text, encoding="utf-8")
    with ExitStack() as stack:
        tested = stack.enter_context(_Predictor(args))
        reference = stack.enter_context(_Predictor(_reference_args(args))) if args.reference else None
        _check_vocabularies(tested, reference)
        windows = text_windows(tested, text, args.window_len)[: args.windows]
        scores = _Scores()
        for window in windows:
            logprobs = tested.logprobs(window)
            scores.add(window, logprobs, None if reference is None else reference.logprobs(window))
        figures = {"model": tested.info.name, "windows": len(windows), **scores.figures()}
    show_table("quality", ("figure", "value"), [(name, _shown(value)) for name, value in figures.items()])
    write_json("quality", figures, args.output_json)
    return 0


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--text: {file} cannot be read: {error}.") from error


def _shown(value: Any) -> str:
    return f"{value:,.6f}" if isinstance(value, float) else f"{value}"


def _reference_args(args: argparse.Namespace) -> argparse.Namespace:
    shared = {name: getattr(args, name) for name in _OF_BOTH}
    return argparse.Namespace(**shared, models_given=args.reference, registry=args.registry)


def _check_vocabularies(tested: _Predictor, reference: _Predictor | None) -> None:
    sizes = [each.info.vocab_size for each in (tested, reference) if each is not None]
    if len(set(sizes)) > 1:
        raise ConfigError(f"--reference: its vocabulary has {sizes[1]} tokens, that of the model {sizes[0]}.")


def text_windows(model: _Predictor, text: str, size: int) -> list[tuple[int, ...]]:
    """The text as windows of `size` token ids, without the rest that fills none.

    If the tokenizer begins texts with a token, it replaces the first token of every window. Raises ConfigError if there
    is no window, or one is too long for the model.
    """
    if size >= model.info.max_model_len:
        raise ConfigError(f"--window-len {size}: the model takes at most {model.info.max_model_len - 1} tokens.")
    start = model.tokenizer.encode("")[:1]
    ids = [*start, *model.tokenizer.encode(text, add_special_tokens=False)]
    if len(ids) < size:
        raise ConfigError(f"--text: it has {len(ids)} tokens, fewer than a window of {size}.")
    begins = range(0, len(ids) - size + 1, size)
    return [(*start, *ids[begin + len(start) : begin + size]) for begin in begins]


@dataclass
class _Recorder:
    """The op `logprobs` of one engine, which keeps the log-probabilities of all rows that it is called with."""

    rows: list[Tensor] = field(default_factory=list)

    def __call__(self, logits: Tensor, tokens: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        from quire_kernels.pytorch.sampling import logprobs

        self.rows.append(logits.log_softmax(-1))
        return logprobs(logits, tokens, top)

    def registered(self, registry: Registry) -> Registry:
        """The registry with this op, preferred to all others."""
        op = OpImpl("recorded_logprobs", "logprobs", lambda query: None, lambda: self, priority=1 << 30)
        records = {**registry.records, "quire_ops": {**registry.by_hook("quire_ops"), op.name: op}}
        return replace(registry, records=records, origin={**registry.origin, ("quire_ops", op.name): "bench"})


class _Predictor:
    """A model in this process that is asked for its distributions, one window at a time."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._recorder = _Recorder()
        args = argparse.Namespace(**{**vars(args), "registry": self._recorder.registered(args.registry)})
        tokenizer = tokenizer_of(config_of(args))
        if tokenizer is None:
            raise ConfigError("The model has no tokenizer, so that it cannot read a text.")
        self.tokenizer: Tokenizer = tokenizer
        self._engine = engine_of(args)
        self.info = self._engine.info

    def __enter__(self) -> _Predictor:
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.close()

    def logprobs(self, window: Sequence[int]) -> Tensor:
        """Log-probabilities of what follows each token of the window but the last: float32 [tokens - 1, vocabulary].

        Raises QuireError if the model cannot compute them.
        """
        import torch

        self._recorder.rows.clear()
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=0, detokenize=False)
        self._engine.add(Request(id="window", prompt=Prompt(token_ids=tuple(window)), params=params))
        while self._engine.has_work:
            for delta in self._engine.step():
                if delta.error is not None:
                    raise from_wire(delta.error)
        return torch.cat(self._recorder.rows)[: len(window) - 1]


@dataclass
class _Scores:
    """What was found for each scored token.

    logprobs: of the token, by the model; reference_logprobs: by the reference. divergences: KL(reference ‖ model) of
    the two distributions, in nats. same_top: whether their most likely tokens are the same.
    """

    logprobs: list[float] = field(default_factory=list)
    reference_logprobs: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    same_top: list[bool] = field(default_factory=list)

    def add(self, window: Sequence[int], logprobs: Tensor, reference: Tensor | None) -> None:
        """Scores the second half of a window. logprobs, reference: [tokens - 1, vocabulary], as of `_Predictor`."""
        first = len(window) // 2
        following = logprobs.new_tensor(window[first + 1 :]).long()[:, None]
        logprobs = logprobs[first:]
        self.logprobs += logprobs.gather(1, following)[:, 0].tolist()
        if reference is not None:
            reference = reference[first:]
            self.reference_logprobs += reference.gather(1, following)[:, 0].tolist()
            self.divergences += (reference.exp() * (reference - logprobs)).sum(1).tolist()
            self.same_top += (reference.argmax(1) == logprobs.argmax(1)).tolist()

    def figures(self) -> dict[str, Any]:
        """Mean figures with their standard errors, and percentiles of the KL divergence."""
        figures = {"scored_tokens": len(self.logprobs), **_perplexity("perplexity", self.logprobs)}
        if self.divergences:
            ratios = [own - other for own, other in zip(self.logprobs, self.reference_logprobs, strict=True)]
            figures |= _perplexity("reference_perplexity", self.reference_logprobs)
            figures |= _perplexity("perplexity_ratio", ratios)
            figures["kl_mean"], figures["kl_mean_error"] = _mean(self.divergences)
            figures |= {f"kl_p{point}": percentile(self.divergences, point / 100) for point in (50, 90, 99)}
            figures["kl_max"] = max(self.divergences)
            figures["same_top_token_percent"] = 100 * sum(self.same_top) / len(self.same_top)
        return figures


def _perplexity(name: str, logprobs: Sequence[float]) -> dict[str, float]:
    """exp(-mean) and its standard error."""
    mean, error = _mean(logprobs)
    return {name: math.exp(-mean), f"{name}_error": math.exp(-mean) * error}


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The mean and its standard error, which takes the values for independent."""
    mean = statistics.fmean(values)
    return mean, statistics.stdev(values, mean) / math.sqrt(len(values)) if len(values) > 1 else math.nan
