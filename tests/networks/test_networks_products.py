"""Products in the form for cards, on the CPU: the same function, and gradients, as plain ones."""

import pytest
import torch

from rlz.networks.products import BLOCK_ROWS, MOST_BLOCKS, blocks, on_card, product


@pytest.mark.parametrize("stack", [(), (3,)])
@pytest.mark.parametrize(("rows", "columns"), [(27, 16), (35, 256), (64, 1), (8, 8), (5, 3)])
@pytest.mark.parametrize("batch", [6, 2048])
def test_it_is_the_product(stack: tuple[int, ...], rows: int, columns: int, batch: int) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(*stack, batch, rows, dtype=torch.float64, generator=generator).requires_grad_()
    weight = torch.randn(*stack, rows, columns, dtype=torch.float64, generator=generator).requires_grad_()
    slope = torch.randn(*stack, batch, columns, dtype=torch.float64, generator=generator)
    found, expected = on_card(x, weight), torch.matmul(x, weight)
    torch.testing.assert_close(found, expected)
    for got, want in zip(
        torch.autograd.grad(found, (x, weight), slope), torch.autograd.grad(expected, (x, weight), slope), strict=True
    ):
        torch.testing.assert_close(got, want)
    assert torch.equal(product(x, weight), expected), "plain on the CPU, so serial runs keep their bits"


def test_only_what_is_asked_for_is_computed() -> None:
    x, weight = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    (found,) = torch.autograd.grad(on_card(x, weight).sum(), (weight,))
    torch.testing.assert_close(found, x.T @ torch.ones(8, 8))


def test_blocks_are_equal_parts() -> None:
    assert [blocks(batch) for batch in (1, 256, 1024, 8192, 131_072, 1023, 1025)] == [1, 1, 2, 16, MOST_BLOCKS, 1, 1]
    assert blocks(3 * BLOCK_ROWS) == 3


def test_the_compiler_can_trace_it() -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    def slopes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            leaf = weight.detach().requires_grad_()
            (found,) = torch.autograd.grad(on_card(x, leaf).square().sum(), leaf)
        return found

    x, weight = torch.randn(1024, 27), torch.randn(27, 16)
    with torch.no_grad():
        traced = make_fx(slopes)(x, weight)
        torch.testing.assert_close(traced(x, weight), slopes(x, weight))
