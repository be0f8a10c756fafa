"""What a sparse chain takes as its input, and what it refuses."""

import pytest
import torch
from sparse_layers import BUILDS, assert_near, chain_of, dense, sparse_layer, threads

from secateur.run import Kernel, SparseChain
from secateur.run.sparse_layer import Pool, SparseLayer, Window


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
@pytest.mark.parametrize("lead", [(), (1,), (7,), (2, 3), (1, 5), (2, 1, 4), (0,), (2, 0)])
def test_all_dimensions_before_the_last_are_samples(way, kernel, lead):
    layer = sparse_layer((6, 9), 0.5, "gelu")
    x = torch.randn(*lead, 9)
    chain = chain_of([layer], kernel, way)
    for _ in range(2):
        assert_near(chain(x), dense([layer], x))
    residual = torch.randn(*lead, 6)
    assert_near(chain(x, residual), dense([layer], x, residual))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(2)])
@pytest.mark.parametrize("lead", [(), (1,), (3,), (0,)])
def test_single_images_and_empty_batches_are_taken(way, kernel, lead):
    layer = sparse_layer((6, 2, 3, 3), 0.5, "relu", Window(), Pool(2, 2))
    x = torch.randn(*lead, 2, 9, 8)
    chain = chain_of([layer], kernel, way)
    for _ in range(2):
        assert_near(chain(x), dense([layer], x))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_samples_of_any_shape_are_read_as_vectors(way):
    layer = sparse_layer((6, 24), 0.5)
    chain = chain_of([layer], Kernel(), way, flattens="samples")
    for shape in ((5, 24), (5, 2, 3, 4), (5, 4, 3, 2), (1, 24, 1)):
        x = torch.randn(shape)
        assert_near(chain(x), dense([layer], x.flatten(1)))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_results_lie_in_memory_as_torch_has_them(way):
    chain = chain_of([sparse_layer((6, 9), 0.5)], Kernel(), way)
    assert all(chain(torch.randn(batch, 9)).is_contiguous() for batch in (1, 5))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(4)])
def test_strides_of_the_input_do_not_matter(way, kernel):
    layer, x = sparse_layer((6, 9), 0.5), torch.randn(9, 20)
    chain = chain_of([layer], kernel, way)
    chain(torch.randn(2, 9))
    for view in (x.t(), torch.randn(40, 9)[::2], torch.randn(20, 18)[:, ::2], torch.randn(1, 9).expand(20, 9)):
        assert_near(chain(view), dense([layer], view))
    image, images = sparse_layer((4, 3, 3, 3), 0.5, window=Window()), torch.randn(5, 3, 8, 7)
    chain = chain_of([image], kernel, way)
    chain(images)
    for view in (images.to(memory_format=torch.channels_last), images.transpose(2, 3), images[:, :, ::2, 1:]):
        assert_near(chain(view), dense([image], view))


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
def test_a_residual_of_any_strides_is_added(way):
    layer, x = sparse_layer((4, 3, 3, 3), 0.5, "relu", Window()), torch.randn(5, 3, 8, 7)
    residual = torch.randn(5, 4, 6, 5)
    chain = chain_of([layer], Kernel(), way)
    views = residual, residual.to(memory_format=torch.channels_last), residual[:1], residual[:, :, :, :1]
    for view in (*views, residual.clone().requires_grad_(), *views):  # the first again, now that its shape is known
        with torch.no_grad():
            assert_near(chain(x, view), dense([layer], x, view))


def test_inputs_that_do_not_fit_are_refused():
    linear = SparseChain([sparse_layer((6, 9), 0.5)])
    image = SparseChain(
        [sparse_layer((4, 3, 3, 3), 0.5, window=Window()), sparse_layer((2, 4, 3, 3), 1, window=Window())]
    )
    with pytest.raises(ValueError, match="takes 9 features, got an input of shape"):
        linear(torch.randn(3, 8))
    with pytest.raises(ValueError, match="images of 3 channels"):
        image(torch.randn(1, 4, 8, 8))
    with pytest.raises(ValueError, match="images of 3 channels"):
        image(torch.randn(1, 1, 3, 8, 8))
    with pytest.raises(ValueError, match="2 × 9 pixels are smaller"):
        image(torch.randn(1, 3, 2, 9))
    with pytest.raises(ValueError, match="2 × 7 pixels are smaller"):  # what the first layer leaves of them
        image(torch.randn(1, 3, 4, 9))
    with pytest.raises(TypeError, match=r"float32 on the CPU, got torch\.float64"):
        linear(torch.randn(3, 9).double())
    with pytest.raises(RuntimeError, match="no gradients"):
        linear(torch.randn(3, 9, requires_grad=True))
    with pytest.raises(ValueError, match="at least one layer"):
        SparseChain([])


def test_an_image_that_vanishes_between_layers_does_not_come_back_by_padding():
    layers = [
        sparse_layer((2, 1, 5, 5), 1.0, window=Window()),
        sparse_layer((2, 2, 1, 1), 1, window=Window(padding=(4, 4))),
    ]
    with pytest.raises(ValueError, match="smaller"):
        SparseChain(layers)(torch.randn(1, 1, 3, 3))


def test_a_pool_larger_than_its_image_is_refused():
    chain = SparseChain([sparse_layer((2, 1, 2, 2), 1.0, "none", Window(), Pool(3, 3))])
    for size in (2, 3):
        with pytest.raises(ValueError, match="smaller"):
            chain(torch.randn(1, 1, size, size))


def test_a_residual_that_the_kernels_cannot_add_is_refused():
    layer, x = sparse_layer((4, 3, 3, 3), 0.5, "none", Window(), Pool(2, 2)), torch.randn(1, 3, 8, 8)
    plain = sparse_layer((6, 9), 0.5)
    pooled, chain = SparseChain([layer]), SparseChain([plain])
    for _ in range(2):  # also when the shape is known
        with pytest.raises(ValueError, match="pool"):
            pooled(x, torch.randn(1, 4, 3, 3))
        for dtype in (torch.float16, torch.float64, torch.int64):
            with pytest.raises(TypeError, match="residual"):
                chain(torch.randn(2, 9), torch.ones(2, 6, dtype=dtype))
        pooled(x), chain(torch.randn(2, 9))


@pytest.mark.parametrize("fault", ["beyond", "negative", "twice", "descending"])
def test_loaded_weights_outside_of_a_layer_never_reach_the_kernel(fault):
    layer = sparse_layer((6, 9), 1.0)
    chain = SparseChain([layer])
    chain(torch.randn(1, 9))
    state = {name: value.clone() for name, value in chain.state_dict().items()}
    places = state["places0"]
    if fault == "beyond":
        places[-1] = 54
    elif fault == "negative":
        places[0] = -1
    elif fault == "twice":
        places[5] = places[4]
    else:
        places[4:6] = places[4:6].flip(0)
    chain.load_state_dict(state)
    chain._call = lambda *_: pytest.fail("the kernel ran")
    with pytest.raises(ValueError, match="layer 0 of the chain has"):
        chain(torch.randn(1, 9))


def test_weights_that_are_changed_in_place_are_looked_at_before_a_new_size():
    chain = SparseChain([sparse_layer((2, 1, 2, 2), 1.0, window=Window())])
    chain(torch.randn(1, 1, 4, 4))
    chain.places0[-1] = 10**6
    with pytest.raises(ValueError, match="outside of its 8 weights"):
        chain(torch.randn(1, 1, 5, 5))


def test_a_chain_loads_what_another_saved():
    first, second = (SparseChain([sparse_layer((6, 9), 1.0)]) for _ in range(2))
    x = torch.randn(4, 9)
    assert not torch.equal(first(x), second(x))
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x), second(x))


def test_a_kernel_of_no_known_kind_is_refused():
    with pytest.raises(ValueError, match="1, 2, 4 or 8 vectors"):
        Kernel(3)
    with pytest.raises(ValueError, match="spread"):
        Kernel(0, 0)


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 1), (5, 2), ((3, 1), 1)])
def test_padding_may_be_given_by_its_name(kernel, dilation):
    x = torch.randn(2, 3, 12, 11)
    for padding in ("same", "valid"):
        module = torch.nn.Conv2d(3, 4, kernel, padding=padding, dilation=dilation).requires_grad_(False)
        torch.testing.assert_close(SparseChain([SparseLayer.of(module)])(x), module(x), rtol=1e-4, atol=1e-5)


def test_padding_that_differs_between_sides_is_left_to_torch():
    assert SparseLayer.of(torch.nn.Conv2d(3, 4, 2, padding="same")) is None


@pytest.mark.parametrize("way", [*BUILDS, "twin"])
@pytest.mark.parametrize("kernel", [Kernel(0), Kernel(1), Kernel(4)])
@pytest.mark.parametrize("count", [1, 2])
def test_a_residual_is_added_before_the_last_activation_of_a_chain(way, kernel, count):
    layers = [sparse_layer((700, 30), 0.5, "gelu"), sparse_layer((25, 700), 0.1, "relu6")]
    chain = chain_of(layers, kernel, way)
    for batch in (1, 5, 50):
        x, wide, narrow = torch.randn(batch, 30), torch.randn(batch, 700), torch.randn(batch, 25)
        with threads(count):
            assert_near(chain(x, narrow), dense(layers, x, narrow))
            assert_near(chain_of(layers[:1], kernel, way)(x, wide), dense(layers[:1], x, wide))
