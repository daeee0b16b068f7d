"""The check of operations for plugin authors says yes and no, each for the right reason."""

from dataclasses import replace

import pytest

from quire.records import OpImpl
from quire_kernels import ops, reference
from quire_testing import check_op
from quire_testing.ops.cases import CASES


def impl(op: str, function) -> OpImpl:
    return OpImpl("mine", op, lambda query: None, lambda: function)


def test_there_are_cases_for_every_operation() -> None:
    assert set(CASES) == set(ops.TABLE)


@pytest.mark.parametrize("op", ops.TABLE)
def test_the_reference_passes_its_own_check(op: str) -> None:
    check_op(impl(op, getattr(reference, op)))


def test_an_operation_that_is_slightly_off_is_noticed() -> None:
    def off(x, weight, eps):
        return reference.rms_norm(x, weight, eps + 1e-3)

    with pytest.raises(AssertionError, match=r"rms_norm, case 0 .*: off by"):
        check_op(impl("rms_norm", off))


def test_an_operation_that_ignores_the_window_is_noticed() -> None:
    def blind(q, k_pool, v_pool, rows, scale, window=None, softcap=None):
        return reference.paged_attention(q, k_pool, v_pool, rows, scale, None, softcap)

    with pytest.raises(AssertionError, match="paged_attention, case"):
        check_op(impl("paged_attention", blind))


def test_an_operation_that_writes_beside_its_slots_is_noticed() -> None:
    def careless(k, v, k_pool, v_pool, slot_mapping):
        reference.write_kv(k, v, k_pool, v_pool, slot_mapping)
        v_pool[-1, -1] = 0

    with pytest.raises(AssertionError, match="write_kv, case"):
        check_op(impl("write_kv", careless))


def test_an_operation_of_another_type_or_shape_is_noticed() -> None:
    with pytest.raises(AssertionError, match=r"torch.bfloat16, not torch.float32"):
        check_op(impl("act", lambda x, act: reference.act(x, act).bfloat16()))
    with pytest.raises(AssertionError, match="shape"):
        check_op(impl("act", lambda x, act: reference.act(x, act)[:-1]))


def test_an_operation_must_exist_and_support_what_is_asked() -> None:
    with pytest.raises(AssertionError, match="is no operation; there are rms_norm"):
        check_op(impl("fold", None))
    with pytest.raises(AssertionError, match="does not support bfloat16 on cpu: too coarse"):
        check_op(replace(impl("act", reference.act), supports=lambda query: "too coarse"), "bfloat16")
