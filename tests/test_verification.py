"""Block verification against a slow, literal transcription of its recursion, and by hand."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdiff.coupling import log_residual_mass
from specdiff.verification import Block


def literal(length: int, log_ratio: list[float], delta: list[float], u: list[float]) -> tuple[int, float]:
    """p_i, S_i and h_i one after the other, as in design and paper."""
    p = [1.0]
    for i in range(length):
        p.append(min(1.0, p[-1] * math.exp(log_ratio[i])))
    tau = 0
    for i in range(1, length + 1):
        h = p[i]
        if i < length:
            alpha = torch.tensor(p[i], dtype=torch.float64).log()
            mass = math.exp(float(log_residual_mass(alpha, torch.tensor(delta[i], dtype=torch.float64))))
            h = mass / (mass + 1 - p[i]) if mass + 1 - p[i] > 0 else 1.0
        if u[i - 1] <= h:
            tau = i
    return tau, p[tau]


@given(data=st.data(), drafts=st.integers(1, 8), lanes=st.integers(1, 4))
@settings(derandomize=True, deadline=None, max_examples=200)
def test_block_follows_the_recursion(data: st.DataObject, drafts: int, lanes: int) -> None:
    def table(low: float, high: float) -> torch.Tensor:
        rows = st.lists(st.floats(low, high), min_size=lanes * drafts, max_size=lanes * drafts)
        return torch.tensor(data.draw(rows), dtype=torch.float64).view(lanes, drafts)

    log_ratio, delta, u = table(-5, 5), table(0.01, 4), table(0.001, 0.999)
    length = torch.tensor(data.draw(st.lists(st.integers(0, drafts), min_size=lanes, max_size=lanes)))
    tau, log_alpha = Block().accept(length, log_ratio, delta, u)
    for lane in range(lanes):
        expected = literal(int(length[lane]), log_ratio[lane].tolist(), delta[lane].tolist(), u[lane].tolist())
        assert int(tau[lane]) == expected[0]
        assert math.isclose(math.exp(log_alpha[lane]), expected[1], rel_tol=1e-9)


def test_equal_laws_keep_everything() -> None:
    zeros = torch.zeros(3, 5, dtype=torch.float64)
    tau, log_alpha = Block().accept(torch.tensor([5, 2, 0]), zeros, zeros, zeros + 0.999999)
    assert tau.tolist() == [5, 2, 0]
    assert log_alpha.tolist() == [0, 0, 0]


def test_the_largest_draft_that_passes_is_kept_though_an_earlier_one_did_not() -> None:
    log_ratio = torch.tensor([[-1.0, 1.5]], dtype=torch.float64)
    delta = torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    # p = 1, e^−1, 1: h_2 = 1, so the block is kept whole whatever U_1 says
    tau, log_alpha = Block().accept(torch.tensor([2]), log_ratio, delta, torch.tensor([[0.99, 0.99]]).double())
    assert (int(tau), float(log_alpha)) == (2, 0.0)


def test_a_draft_that_is_not_a_number_is_not_kept() -> None:
    log_ratio = torch.tensor([[0.0, math.nan, 0.0]], dtype=torch.float64)
    tau, _ = Block().accept(torch.tensor([3]), log_ratio, log_ratio.abs(), torch.full((1, 3), 0.5).double())
    assert int(tau) < 2
