"""A runner without a model: keeps what each slot of the page pool stands for, and draws tokens from it.

The entry of a position is a hash of all tokens up to it (and of adapter and media), as K and V would be. Every
position that a chunk attends to must hold the entry of its own seq, so a wrong copy, swap, cache hit or page
table fails at once. A sampled token is a pure function of the entry, the seed and nothing else, so that
`alone` can say what a request must get whatever else was running.

The state of a seq is the entry of its last computed position: each chunk must find in its slot the state right before
it, and takes it further. A slot is overwritten where it is not moved, as by a step that comes too early or too late.
"""

from dataclasses import dataclass, field

from quire.params.sampling import BeamSearchParams
from quire.types import UNKNOWN, AcceptedDrafts, Chunk, NewSeq, Plan, Request, Sample, StepResult, TokenLogprobs

VOCAB = 11
MASK64 = (1 << 64) - 1


def splitmix64(value: int) -> int:
    value = (value + 0x9E3779B97F4A7C15) & MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK64
    return value ^ (value >> 31)


def entries(start: NewSeq | Request, tokens, adapters, media):
    """The entry of every position."""
    value = splitmix64(sum(map(ord, repr(adapters))) * 31 + sum(use.ref.revision + 1 for use in adapters) - 1)
    found = []
    for position, token in enumerate(tokens):
        picture = next((m.digest for m in media if m.start <= position < m.start + m.length), "")
        value = splitmix64(value ^ splitmix64(token * 1000 + sum(map(ord, picture))))
        found.append(value)
    return found


def draw(entry: int, seed: int) -> int:
    return splitmix64(entry ^ seed) % VOCAB


def logprob(entry: int, token: int) -> float:
    return -(splitmix64(entry ^ (token + 77)) % 4093 + 1) / 512


def candidates(entry: int, width: int) -> tuple[tuple[int, float], ...]:
    ranked = sorted(((token, logprob(entry, token)) for token in range(VOCAB)), key=lambda pair: -pair[1])
    return tuple(ranked[: 2 * width])


@dataclass
class Row:
    start: NewSeq
    tokens: list[int]
    table: list[int] = field(default_factory=list)
    sampled: int = UNKNOWN

    def entries(self):
        return entries(self.start, self.tokens, self.start.adapters, self.start.media)


class PretendRunner:
    def __init__(
        self,
        num_pages: int,
        page_size: int,
        num_host_pages: int,
        max_rows: int,
        max_tokens: int,
        bidirectional_media: bool = False,
        media_in_one: bool = False,
        num_state_slots: int = 0,
        num_host_state_slots: int = 0,
    ) -> None:
        self.size, self.max_rows, self.max_tokens = page_size, max_rows, max_tokens
        self.bidirectional_media, self.media_in_one = bidirectional_media, media_in_one
        self.pages = [[None] * page_size for _ in range(num_pages)]
        self.host = [[None] * page_size for _ in range(num_host_pages)]
        self.rows: dict[int, Row] = {}
        self.states: list[int | str] = ["never written"] * num_state_slots
        self.host_states: list[int | str] = ["never written"] * num_host_state_slots
        self.num_copies = self.num_lost = self.num_drafts = self.num_accepted = 0
        self.losing = False  # whether the next forward raises midway

    @staticmethod
    def move(source, target, pairs):
        """All at once, as a gather and a scatter do."""
        assert len({b for _, b in pairs}) == len(pairs), "one page gets two contents"
        assert source is not target or not {a for a, _ in pairs} & {b for _, b in pairs}, "a copy of a copy"
        for b, content in [(b, list(source[a])) for a, b in pairs]:
            target[b] = content

    def run(self, plan: Plan) -> StepResult:
        for seq_id in plan.ended:
            del self.rows[seq_id]
        self.move(self.pages, self.host, plan.swaps_out)
        self.move(self.host, self.pages, plan.swaps_in)
        self.move(self.pages, self.pages, plan.copies)
        self.num_copies += len(plan.copies)
        self.move_states(plan)
        for start in plan.started:
            assert start.seq_id not in self.rows, "started twice"
            self.rows[start.seq_id] = Row(start, [*start.prompt_ids, *start.output_ids])
        assert len({chunk.seq_id for chunk in plan.chunks}) == len(plan.chunks) <= self.max_rows
        assert plan.num_tokens <= self.max_tokens
        self.write(plan)
        if self.states:
            self.advance_states(plan)
            if self.losing:
                self.num_lost += 1
                return StepResult({}, lost=frozenset(chunk.seq_id for chunk in plan.chunks))
        samples, prompt_logprobs, accepted = {}, {}, {}
        for chunk in plan.chunks:
            row = self.rows[chunk.seq_id]
            known, end = row.entries(), chunk.start + len(chunk.token_ids)
            for position in range(end):
                held = self.pages[row.table[position // self.size]][position % self.size]
                assert held == known[position], f"position {position} of seq {chunk.seq_id} holds something else"
            if chunk.samples:
                assert end == len(row.tokens)
                samples[chunk.seq_id], more = self.verify(row, chunk, known)
                row.sampled = samples[chunk.seq_id].token_id
                if chunk.num_drafts:
                    accepted[chunk.seq_id] = more
                    self.num_drafts += chunk.num_drafts
                    self.num_accepted += more.num_drafts
            prompt = row.start.prompt_ids
            prompt_logprobs[chunk.seq_id] = [
                TokenLogprobs(prompt[p + 1], logprob(known[p], prompt[p + 1]), 1)
                for p in range(chunk.start, min(end, len(prompt) - 1))
            ]
        return StepResult(samples, prompt_logprobs, accepted=accepted)

    def verify(self, row: Row, chunk: Chunk, known) -> tuple[Sample, AcceptedDrafts]:
        """Samples until they leave the drafts, which the row then forgets from there on."""
        first, samples, tokens, count = len(row.tokens) - chunk.num_drafts, [], [], 0
        while count == len(tokens):
            samples.append(self.sample(Row(row.start, row.tokens[: first + count]), known[first + count - 1]))
            tokens += (samples[-1].token_id, *samples[-1].jump_forward_ids)
            while count < min(len(tokens), chunk.num_drafts) and tokens[count] == chunk.drafts[count]:
                count += 1
        del row.tokens[first + count :]
        return samples[0], AcceptedDrafts(tuple(samples[1:]), count)

    def move_states(self, plan: Plan) -> None:
        moves = plan.state
        if moves is None:
            return
        assert self.states, "a model without state moves none"
        written = [*(b for _, b in moves.copies), *moves.cleared, *(b for _, b in moves.swaps_in)]
        assert len(set(written)) == len(written), "one slot gets two contents"
        out = [(b, self.states[a]) for a, b in moves.swaps_out]
        copied = [(b, self.states[a]) for a, b in moves.copies]
        for b, content in out:
            self.host_states[b] = content
        for b, content in [*copied, *((b, "zeros") for b in moves.cleared)]:
            self.states[b] = content
        for a, b in moves.swaps_in:
            self.states[b], self.host_states[a] = self.host_states[a], "moved away"

    def advance_states(self, plan: Plan) -> None:
        slots = [chunk.state_slot for chunk in plan.chunks]
        assert len(set(slots)) == len(slots), "two rows share a slot"
        for chunk in plan.chunks:
            known, end = self.rows[chunk.seq_id].entries(), chunk.start + len(chunk.token_ids)
            expected = known[chunk.start - 1] if chunk.start else "zeros"
            assert self.states[chunk.state_slot] == expected, f"seq {chunk.seq_id} has the state of another position"
            self.states[chunk.state_slot] = "lost" if self.losing else known[end - 1]
        for a, b in () if self.losing or plan.state is None else plan.state.checkpoints:
            assert b not in slots, "a checkpoint in the slot of a row"
            self.states[b] = self.states[a]

    def write(self, plan: Plan) -> None:
        written = set()
        for chunk in plan.chunks:
            row = self.rows[chunk.seq_id]
            assert chunk.first_page <= len(row.table), "a hole in a page table"
            row.table[chunk.first_page :] = chunk.new_pages
            end = chunk.start + len(chunk.token_ids)
            assert len(chunk.token_ids) > 0
            assert chunk.start <= len(row.tokens)
            assert not self.bidirectional_media or not self.cuts(row, end), "a chunk ends inside a medium"
            assert not self.media_in_one or not self.cuts(row, chunk.start), "a chunk begins inside a medium"
            row.tokens[chunk.start : end] = [row.sampled if token == UNKNOWN else token for token in chunk.token_ids]
            assert UNKNOWN not in row.tokens, "the plan before has sampled it"
            assert len(row.table) == -(-end // self.size), "exactly the pages that are filled"
            for position, entry in enumerate(row.entries()[:end]):
                if position >= chunk.start:
                    slot = row.table[position // self.size], position % self.size
                    assert slot not in written, "two chunks write one slot"
                    written.add(slot)
                    self.pages[slot[0]][slot[1]] = entry

    @staticmethod
    def cuts(row: Row, position: int) -> bool:
        return any(m.start < position < m.start + m.length for m in row.start.media)

    def sample(self, row: Row, entry: int) -> Sample:
        start = row.start
        if isinstance(start.params, BeamSearchParams):
            return Sample(-1, candidates=candidates(entry, start.params.beam_width))
        token = draw(entry, start.seed)
        if start.params.logprobs is None:
            return Sample(token)
        return Sample(token, TokenLogprobs(token, logprob(entry, token), 1))


class JumpingRunner(PretendRunner):
    """Now and then a token forces what would come next anyway."""

    def sample(self, row: Row, entry: int) -> Sample:
        sample = super().sample(row, entry)
        if sample.candidates or sample.logprobs is not None or entry % 3:
            return sample
        tokens = [*row.tokens, sample.token_id]
        for _ in range(entry % 7):
            known = entries(row.start, tokens, row.start.adapters, row.start.media)
            tokens.append(draw(known[-1], row.start.seed))
        return Sample(sample.token_id, jump_forward_ids=tuple(tokens[len(row.tokens) + 1 :]))


def alone(request: Request, seed: int, eos_ids, max_len: int) -> list[tuple[tuple[int, ...], str]]:
    """Output and finish reason of each seq of a request, computed from the definition."""
    if isinstance(request.params, BeamSearchParams):
        return beams_alone(request, eos_ids, max_len)
    params, answers = request.params, []
    for index in range(params.num_seqs):
        own = splitmix64(splitmix64(seed % 2**64) ^ index)
        tokens, reason = list(request.prompt.token_ids), None
        first = len(tokens)
        while reason is None:
            if len(tokens) >= max_len or len(tokens) - first == params.max_tokens:
                reason = "length"
                break
            token = draw(entries(request, tokens, request.adapters, request.prompt.media)[-1], own)
            tokens.append(token)
            if len(tokens) - first >= params.min_tokens and (
                (token in eos_ids and not params.ignore_eos) or token in params.stop_token_ids
            ):
                reason = "stop"
        answers.append((tuple(tokens[first:]), reason))
    return answers


def beams_alone(request: Request, eos_ids, max_len: int) -> list[tuple[tuple[int, ...], str]]:
    """The plain algorithm: every round, no early end."""
    params, prompt = request.params, request.prompt.token_ids
    live, done = [((), 0.0)], []
    rounds = min(params.max_tokens, max_len - len(prompt))
    for round_ in range(1, rounds + 1):
        options = []
        for output, total in live:
            entry = entries(request, [*prompt, *output], request.adapters, request.prompt.media)[-1]
            options += [((*output, token), total + lp) for token, lp in candidates(entry, params.beam_width)]
        options.sort(key=lambda pair: -pair[1])
        ends = [] if params.ignore_eos else [o for o in options if o[0][-1] in eos_ids]
        live = [o for o in options if o not in ends][: params.beam_width]
        done += [(output, total / round_**params.length_penalty, "stop") for output, total in ends]
    done += [(output, total / rounds**params.length_penalty, "length") for output, total in live]
    done.sort(key=lambda triple: -triple[1])
    return [(output, reason) for output, _, reason in done[: params.beam_width]]
