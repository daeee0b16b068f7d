"""How counts, heads and parameters are divided among ranks."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from quire.engine.parallel.stages.position import needs_whole_groups
from quire.errors import ConfigError
from quire.records import OpImpl
from quire_kernels.attention import HeadGroups
from quire_kernels.quantized import QuantizedMatrix
from quire_models import Attention, Block, Decoder, GatedMlp, RMSNorm, Stripes
from quire_models.sharding.cuts import Cut, columns_of, cut
from quire_models.sharding.parts import rank_of_model, shard_part
from quire_models.sharding.rank import HeadShare, Rank, divided


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (14, 2), (8, 1), (5, 5), (64, 8), (12, 3)])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_every_query_head_is_on_one_rank_beside_its_keys(heads, kv_heads, size):
    if size > heads:
        return
    shares = [HeadShare.from_rank(heads, kv_heads, Rank(i, size)) for i in range(size)]
    assert [head for share in shares for head in share.queries] == list(range(heads))
    group = heads // kv_heads
    for share in shares:
        assert {head // group for head in share.queries} == set(share.keys)
        assert len(share.queries) % len(share.keys) == 0, "each key-value head has as many query heads as any other"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "queries", "keys"),
    [
        (9, 3, 2, [5, 4], [2, 2]),
        (15, 5, 2, [8, 7], [3, 3]),
        (12, 3, 2, [6, 6], [2, 2]),
        (18, 6, 4, [5, 4, 5, 4], [2, 2, 2, 2]),
        (40, 10, 4, [10, 10, 10, 10], [3, 3, 3, 3]),
        (14, 2, 2, [7, 7], [1, 1]),
        (14, 2, 3, [4, 3, 7], [1, 1, 1]),
        (5, 5, 2, [3, 2], [3, 2]),
        (71, 1, 2, [36, 35], [1, 1]),
        (64, 8, 3, [24, 24, 16], [3, 3, 2]),
    ],
)
def test_groups_are_divided_where_that_lowers_the_most_queries_and_not_raises_the_most_keys(
    heads, kv_heads, size, queries, keys
):
    shares = [HeadShare.from_rank(heads, kv_heads, Rank(i, size, whole_groups=False)) for i in range(size)]
    assert [len(share.queries) for share in shares] == queries
    assert [len(share.keys) for share in shares] == keys
    assert [head for share in shares for head in share.queries] == list(range(heads))
    for share in shares:
        groups = share.groups or HeadGroups(len(share.queries) // len(share.keys))
        used = [share.keys[(groups.first + i) // groups.size] for i in range(len(share.queries))]
        assert used == [head // (heads // kv_heads) for head in share.queries]


def test_what_a_head_has_of_its_own_stays_with_it():
    whole = Attention(12, 3, 16, alibi=tuple(range(12)), stripes=Stripes(16, 1, 3, 1))
    for rank, first in ((Rank(1, 2, whole_groups=False), 6), (Rank(1, 2), 8)):
        own = shard_part(whole, rank)
        assert own.alibi == tuple(range(first, 12))
        assert own.stripes.first == first


@pytest.mark.parametrize(
    ("backend", "theirs", "wanted"),
    [
        ("auto", {}, True),
        ("auto", {"attention_options": ("groups",)}, False),
        ("auto", {"on_request": True}, False),
        ("theirs", {"on_request": True}, True),
        ("auto", {"supports": lambda query: "no GPU" if query.device == "cpu" else None}, False),
        ("torch", {}, False),
    ],
)
def test_attention_of_a_plugin_that_needs_whole_groups_gets_them(backend, theirs, wanted):
    made = OpImpl(
        **{"name": "theirs", "op": "paged_attention", "supports": lambda query: None, "load": print, **theirs}
    )
    registry = SimpleNamespace(by_hook={"quire_ops": {"theirs": made}}.__getitem__)
    assert needs_whole_groups(backend, registry) == wanted


def test_blocks_that_share_keys_have_the_same_ones_on_each_rank():
    one, other = Attention(12, 3, 16), Attention(9, 3, 16, kv_from=0)
    norm, mlp = RMSNorm(), GatedMlp(64)
    for second, whole_groups in ((replace(one, kv_from=0), False), (other, True)):
        decoder = Decoder(vocab=64, width=32, blocks=(Block(one, mlp, norm), Block(second, mlp, norm)), norm=norm)
        assert rank_of_model(decoder, Rank(0, 2, whole_groups=False)).whole_groups == whole_groups


def test_too_many_ranks_are_refused_with_the_number_that_there_can_be():
    with pytest.raises(ConfigError, match="the model has 4 attention heads, so it can be at most 4"):
        HeadShare.from_rank(4, 2, Rank(0, 5))
    with pytest.raises(ConfigError, match="has 3 experts, so it can be at most 3"):
        Rank(0, 4).share(3, "experts")


@pytest.mark.parametrize(
    ("count", "size", "shares"),
    [(1024, 2, [512, 512]), (96, 4, [24] * 4), (1536, 5, [320, 320, 320, 320, 256]), (7, 3, [3, 2, 2])],
)
def test_columns_are_divided_at_round_numbers_where_that_is_about_even(count, size, shares):
    ranges = [Rank(i, size).columns(count, "columns") for i in range(size)]
    assert [len(each) for each in ranges] == shares
    assert [i for each in ranges for i in each] == list(range(count))


def test_the_first_ranks_have_one_more():
    assert [len(part) for part in divided(11, 4)] == [3, 3, 3, 2]


def test_a_slice_of_a_fused_parameter_goes_to_its_part_of_the_rank():
    kept = Cut({0: columns_of((8, range(4, 8)), (4, range(2, 4)), (4, range(2, 4)))})
    assert kept.place((slice(0, 8),), (16, 5)) == ((slice(0, 4),), (slice(4, 8), slice(None)))
    assert kept.place((slice(8, 12),), (16, 5)) == ((slice(4, 6),), (slice(2, 4), slice(None)))


def test_an_expert_of_another_rank_has_no_place():
    kept = Cut({0: torch.arange(2, 4)})
    assert kept.place((1, slice(0, 6)), (4, 6, 3)) is None
    assert kept.place((3,), (4, 6, 3)) == ((1,), (slice(None), slice(None)))


def matrix(group_size, order=None):
    generator = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (6, 128), generator=generator, dtype=torch.uint8)
    scales = torch.rand(6, 128 // group_size, generator=generator)
    return QuantizedMatrix(codes, scales, 4, group_size, zero=8, offsets=scales * 3, order=order)


@pytest.mark.parametrize(("first", "last"), [(0, 64), (64, 128), (48, 128), (0, 48), (16, 112)])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_columns_of_a_quantized_matrix_keep_their_values(group_size, first, last):
    whole = matrix(group_size)
    part = cut(whole, (slice(1, 5), slice(first, last)))
    assert part.problem() is None
    assert torch.equal(part.dequantized(), whole.dequantized()[1:5, first:last])


def test_columns_that_no_group_ends_at_and_columns_in_another_order_cannot_be_cut():
    with pytest.raises(ValueError, match="cannot be cut at 0 and 24"):
        matrix(32).columns(0, 24)
    with pytest.raises(ValueError, match="order of their own"):
        matrix(32, order=torch.arange(127, -1, -1)).columns(0, 64)
