import pytest
import torch
from scipy import stats

from specdiff.noise import Purpose, normals, philox, uniforms


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the generator's published known answers (Random123, kat_vectors, philox4x32 10)
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    words = philox(tuple(torch.tensor(c) for c in counter), tuple(torch.tensor(k) for k in key))  # type: ignore[arg-type]
    assert tuple(int(word) for word in words) == expected


def test_normals_are_standard_and_independent() -> None:
    """Family-wise false-alarm rate 1e-3 over the six tests; the seeds are fixed."""
    seed = torch.arange(200)[:, None]
    z = normals(seed, torch.arange(50), torch.zeros((), dtype=torch.int64), 101).double()
    assert z.shape == (200, 50, 101)
    level = 1e-3 / 6
    assert stats.kstest(z.flatten().numpy(), "norm").pvalue > level
    for a, b in ((z[1:], z[:-1]), (z[:, 1:], z[:, :-1]), (z[..., 1:], z[..., :-1])):
        assert stats.norm.sf(abs(float((a * b).mean())) * a.numel() ** 0.5) * 2 > level
    assert stats.kstest((z[..., :50] ** 2 + z[..., 50:100] ** 2).flatten().numpy() / 2, "expon").pvalue > level
    tail = int((z.abs() > 4).sum())
    assert stats.binomtest(tail, z.numel(), 2 * stats.norm.sf(4)).pvalue > level


def test_uniforms_are_uniform_and_open() -> None:
    """Family-wise false-alarm rate 1e-3 over three tests."""
    u, v = uniforms(torch.arange(1000)[:, None], torch.arange(100), torch.tensor(0))
    for values in (u, v, (u + v) % 1):
        assert stats.kstest(values.flatten().numpy(), "uniform").pvalue > 1e-3 / 3
    assert ((u > 0) & (u < 1)).all()


def test_a_row_depends_on_its_own_counter_only() -> None:
    seed = torch.tensor([3, 2**63 - 1, 5, 2**40])
    step, stream = torch.tensor([7, 0, 9, 1]), torch.tensor([0, 1, 2, 3])
    together = normals(seed, step, stream, 13)
    for i in range(4):
        assert torch.equal(normals(seed[i], step[i], stream[i], 13), together[i])
    assert len({tuple(row.tolist()) for row in together}) == 4


def test_uses_never_share_numbers() -> None:
    one = torch.tensor(1)
    draws = [normals(one, one, one, 8, purpose) for purpose in (Purpose.START, Purpose.STEP, Purpose.ORTHOGONAL)]
    draws += [normals(one, one, one + 1, 8), normals(one, one + 1, one, 8), normals(one + 2**32, one, one, 8)]
    assert len({tuple(draw.tolist()) for draw in draws}) == len(draws)
