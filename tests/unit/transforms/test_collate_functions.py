"""stack, pad, ragged and images: collate functions of ours, over columns."""

import random

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from mds import MDSWriter, StreamingDataLoader, StreamingDataset
from mds.errors import ConfigError, FunctionError
from mds.transforms import images, pad, ragged, seeded, stack

HOWS = {
    "here": {},
    "processes": {"num_workers": 2, "worker_type": "processes"},
    "threads": {"num_workers": 2},
    "spawned": {"num_workers": 1, "multiprocessing_context": "spawn"},
}


def rows(batches, name):
    """Each sample's value in a column."""
    return {i: b[name][at] for b in batches for at, i in enumerate(b["id"].tolist())}


def test_padded_rows_are_those_of_the_samples(make, how):
    """In every kind of worker; other columns come as without it."""
    loader = StreamingDataLoader(
        make(shuffle=True), collate_fn=pad("ragged", value=-1, multiple=8), **HOWS[how]
    )
    batches = list(loader)
    assert {tuple(b["ragged"].shape) for b in batches} == {(8, 8), (4, 8)}
    lengths, found = rows(batches, "ragged_lengths"), rows(batches, "ragged")
    assert sorted(found) == list(range(100))
    for i, row in found.items():
        assert lengths[i] == i % 4 + 1
        assert row.tolist() == [*range(i % 4 + 1)] + [-1] * (7 - i % 4)
    assert rows(batches, "text")[3] == "sample 3"
    assert batches[0]["vector"].dtype == torch.float32


def test_our_collate_functions_run_in_threads(make):
    """They are the library's own, alone or in map_batches."""
    options = {"num_workers": 2}
    for loader in (
        StreamingDataLoader(make(), collate_fn=pad("ragged"), **options),
        StreamingDataLoader(make().map_batches(pad("ragged")), **options),
    ):
        assert "by 2 threads" in repr(loader)
    caller = StreamingDataLoader(make().map_batches(dict), collate_fn=pad("ragged"), **options)
    assert "by 2 processes" in repr(caller)


def test_padding_on_the_left_with_a_mask(make):
    """For models that generate."""
    batch = next(
        iter(StreamingDataLoader(make(), collate_fn=pad("ragged", side="left", add="mask")))
    )
    assert batch["ragged"][:4].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 2], [0, 1, 2, 3]]
    wanted = [[0, 0, 0, 1], [0, 0, 1, 1], [0, 1, 1, 1], [1, 1, 1, 1]]
    assert batch["ragged_mask"][:4].int().tolist() == wanted
    right = next(iter(StreamingDataLoader(make(), collate_fn=pad("ragged", add="mask"))))
    assert right["ragged_mask"][1].tolist() == [True, True, False, False]


def test_padding_of_several_columns_and_axes():
    """A value for each column; lists count as arrays; only the first axis may differ."""
    samples = [
        {"a": [1, 2], "b": np.ones((1, 3), np.float32)},
        {"a": [3], "b": np.ones((2, 3), np.float32)},
    ]
    batch = pad("a", "b", value={"a": -100, "b": 0}, add=None)(samples)
    assert batch.keys() == {"a", "b"}
    assert batch["a"].tolist() == [[1, 2], [3, -100]]
    assert batch["b"].shape == (2, 2, 3)
    assert batch["b"].sum() == 9
    samples[0]["b"] = np.ones((1, 4), np.float32)
    with pytest.raises(ConfigError, match="only the first axis may differ"):
        pad("a", "b")(samples)
    with pytest.raises(ConfigError, match="column 'a' has str 'x'"):
        pad("a")([{"a": "x"}])


def test_torchs_loader_takes_them_too(make):
    """As any collate function."""
    batch = next(iter(DataLoader(make(), batch_size=4, collate_fn=pad("ragged"))))
    assert batch["ragged"].shape == (4, 4)
    assert batch["id"].tolist() == [0, 1, 2, 3]
    assert batch["text"] == [f"sample {i}" for i in range(4)]


def test_ragged_rows_lie_end_to_end(make, how):
    """With where each begins and ends."""
    batches = list(StreamingDataLoader(make(), collate_fn=ragged("ragged"), **HOWS[how]))
    for batch in batches:
        offsets = batch["ragged_offsets"]
        assert offsets.dtype == torch.int64
        assert len(offsets) == len(batch["id"]) + 1
        for at, i in enumerate(batch["id"].tolist()):
            row = batch["ragged"][offsets[at] : offsets[at + 1]]
            assert row.tolist() == list(range(i % 4 + 1))


@pytest.mark.filterwarnings("ignore:.*jagged.*:UserWarning")
@pytest.mark.parametrize("how", ["here", "threads", "processes"])
def test_ragged_rows_as_a_nested_tensor(make, how):
    """Of torch's jagged layout."""
    loader = StreamingDataLoader(make(), collate_fn=ragged("ragged", nested=True), **HOWS[how])
    for batch in loader:
        assert batch["ragged"].is_nested
        assert batch["ragged"].layout == torch.jagged
        found = [row.tolist() for row in batch["ragged"].unbind()]
        assert found == [list(range(i % 4 + 1)) for i in batch["id"].tolist()]


def test_stack_is_what_a_loader_does_and_insists_where_told(make):
    """The default leaves lists; with a name they are an error that says what to take."""
    plain = list(StreamingDataLoader(make()))
    for found, wanted in zip(StreamingDataLoader(make(), collate_fn=stack()), plain, strict=True):
        assert torch.equal(found["vector"], wanted["vector"])
        assert len(found["ragged"]) == len(wanted["ragged"])
    with pytest.raises(FunctionError, match=r"values of shape \(1,\), \(2,\).*use pad\(\) or ragg"):
        next(iter(StreamingDataLoader(make(), collate_fn=stack("ragged"))))
    assert stack("a")([{"a": 1}, {"a": 2}])["a"].tolist() == [1, 2]


def test_a_mask_of_a_filter_comes_beside_padding(make):
    """Batches of what is kept, padded."""
    dataset = make().filter(lambda s: s["id"] % 3 == 0)
    batches = list(StreamingDataLoader(dataset, collate_fn=pad("ragged")))
    assert sum(len(b["id"]) for b in batches) == 34
    assert all(b["mask"].all() and len(b["ragged"]) == len(b["id"]) for b in batches)


def test_they_say_what_does_not_go():
    """Columns that are not there, and arguments that make no sense."""
    with pytest.raises(ConfigError, match=r"pad\('b'\): there is no column 'b'.*are 'a'"):
        pad("b")([{"a": 1}])
    for make, said in (
        (pad, "names of the"),
        (lambda: pad("a", multiple=0), "multiple of pad"),
        (lambda: pad("a", side="up"), "'right' or 'left'"),
        (lambda: pad("a", add="x"), "'lengths', 'mask' or None"),
        (lambda: pad("a", value={"b": 1}), "value of pad"),
        (lambda: pad(["a"]), "given by name"),
        (ragged, "names of the"),
        (lambda: images("a", size=0), "a size in pixels"),
        (lambda: images(size=3), "names of columns"),
        (lambda: images("a", size=3, resize=0), "at least 1 pixel"),
        (lambda: images("a", size=3, crop="left"), "'center' or 'random'"),
        (lambda: images("a", size=3, dtype="int8"), "'uint8' or 'float32'"),
        (lambda: images("a", size=3, dtype="uint8", mean=(0, 0, 0)), "produce float32"),
        (lambda: images("a", size=3, std=(1, 0, 1)), "three numbers"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


# ---------------------------------------------------------------- pictures


def picture(i):
    """Height 20 + i, width 30, red by row and green by column; every third one grey."""
    rows_, columns = np.mgrid[0 : 20 + i, 0:30].astype(np.uint8)
    if i % 3 == 2:
        return rows_
    return np.stack([rows_, columns, np.full_like(rows_, i)], axis=2)


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Thirty pictures of different sizes, as PNG."""
    out = str(tmp_path_factory.mktemp("photos") / "data")
    with MDSWriter(out=out, columns={"id": "int", "image": "png"}, samples_per_shard=7) as writer:
        for i in range(30):
            writer.write({"id": i, "image": Image.fromarray(picture(i))})
    return out


@pytest.mark.parametrize("kind", ["pil", "array"])
def test_pictures_work_in_a_loader_by_themselves(photos, kind, how):
    """As a list of uint8 tensors; as one tensor where they have one size."""
    dataset = StreamingDataset(local=photos, batch_size=5, images=kind)
    batches = list(StreamingDataLoader(dataset, **HOWS[how]))
    found = rows(batches, "image")
    assert all(np.array_equal(found[i].numpy(), picture(i)) for i in range(30))
    same = StreamingDataset(local=photos, batch_size=2, images=kind).select([4])
    assert next(iter(StreamingDataLoader(same, batch_size=1)))["image"].shape == (1, 24, 30, 3)


@pytest.mark.parametrize("kind", ["pil", "array"])
def test_the_middle_of_pictures(photos, kind):
    """Cut to one size, channels first or last, grey as RGB."""
    dataset = StreamingDataset(local=photos, batch_size=5, images=kind)
    first = list(StreamingDataLoader(dataset, collate_fn=images("image", size=(10, 12))))
    last = list(
        StreamingDataLoader(
            dataset, collate_fn=images("image", size=(10, 12), channels_first=False)
        )
    )
    assert {(tuple(b["image"].shape), b["image"].dtype) for b in first} == {
        ((5, 3, 10, 12), torch.uint8)
    }
    for a, b in zip(first, last, strict=True):
        assert torch.equal(a["image"].permute(0, 2, 3, 1), b["image"])
    for i, cut in rows(last, "image").items():
        top = (20 + i - 10 + 1) // 2
        whole = picture(i)
        if whole.ndim == 2:
            whole = np.stack([whole] * 3, axis=2)
        assert np.array_equal(cut.numpy(), whole[top : top + 10, 9:21]), i


def test_scaled_and_normalised_pictures():
    """The shorter side is resized; small pictures grow; mean and std are shares of 255."""
    flat = [{"x": np.full((50, 100, 3), 51, np.uint8)}, {"x": np.full((8, 4), 51, np.uint8)}]
    batch = images("x", size=16, resize=20, mean=(0.1, 0.2, 0.3), std=(0.1, 0.2, 0.4))(flat)["x"]
    assert batch.shape == (2, 3, 16, 16)
    assert batch.dtype == torch.float32
    wanted = torch.tensor([1.0, 0.0, -0.25]).view(1, 3, 1, 1).expand(2, 3, 16, 16)
    assert torch.allclose(batch, wanted, atol=1e-5)
    shares = images("x", size=16, dtype="float32")(flat)["x"]
    assert torch.allclose(shares, torch.full((2, 3, 16, 16), 0.2))
    gradient = np.mgrid[0:40, 0:60][1].astype(np.uint8)
    small = images("x", size=10, resize=10)([{"x": gradient}])["x"]
    assert np.all(np.diff(small[0, 0, 0].numpy().astype(int)) > 0)


def test_random_cuts_depend_on_the_place_in_the_order_alone(photos, how):
    """The same pixels on any ranks and workers; different ones in another epoch."""
    augment = images("image", size=8, crop="random", flip=True)

    def run(ranks, options, epochs=1):
        found = []
        for rank in range(ranks):
            dataset = StreamingDataset(
                local=photos, batch_size=5, shuffle=True, remainder="short", topology=(rank, ranks)
            )
            loader = StreamingDataLoader(dataset, collate_fn=augment, **options)
            found.append([rows(list(loader), "image") for _ in range(epochs)])
        return [{k: v for each in found for k, v in each[e].items()} for e in range(epochs)]

    first, second = run(1, {}, 2)
    (other,) = run(2, HOWS[how])
    assert all(torch.equal(first[i], other[i]) for i in range(30))
    assert sum(not torch.equal(first[i], second[i]) for i in range(30)) > 20
    red = torch.stack([first[i][0] for i in range(30)])
    assert len({int(r[0, 0]) for r in red}) > 5  # cut at other heights
    green = [first[i][1, 0].int() for i in range(30) if i % 3 != 2]
    mirrored = sum(bool(g[0] > g[-1]) for g in green)
    assert 2 <= mirrored <= 18


def test_random_cuts_need_a_loader_that_knows_the_place(photos):
    """Torch's does not."""
    dataset = StreamingDataset(local=photos, batch_size=5)
    with pytest.raises(ConfigError, match="only StreamingDataLoader knows"):
        next(iter(DataLoader(dataset, batch_size=5, collate_fn=images("image", size=8, flip=True))))


def test_what_is_no_picture_is_told():
    """With type and shape."""
    with pytest.raises(ConfigError, match="column 'x' has ndarray of float64 with shape"):
        images("x", size=4)([{"x": np.zeros((3, 3))}])


def test_the_default_collate_goes_on_where_torchs_gives_up(tmp_path):
    """None, dicts and objects stay lists."""
    columns = {"id": "int", "meta": "json", "maybe": "optional[int]"}
    with MDSWriter(out=str(tmp_path), columns=columns) as writer:
        for i in range(8):
            meta = {"a": i} if i < 4 else {"b": [1] * i}
            writer.write({"id": i, "meta": meta, "maybe": None if i % 2 else i})
    batches = list(StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4)))
    assert batches[0]["maybe"] == [0, None, 2, None]
    assert batches[0]["meta"] == [{"a": i} for i in range(4)]
    mixed = next(iter(StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=8))))
    assert mixed["meta"][5] == {"b": [1] * 5}


def test_numbers_of_json_are_a_tensor_unless_one_is_none(tmp_path):
    """A batch holds single numbers and booleans of json as those of any other column."""
    with MDSWriter(out=str(tmp_path), columns={"n": "json", "yes": "json", "maybe": "json"}) as out:
        for i in range(8):
            out.write({"n": i, "yes": i % 2 == 0, "maybe": None if i == 6 else i})
    batches = list(StreamingDataLoader(StreamingDataset(local=str(tmp_path), batch_size=4)))
    assert [batch["n"].tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batches[0]["yes"].tolist() == [True, False, True, False]
    assert batches[0]["maybe"].tolist() == [0, 1, 2, 3]
    assert batches[1]["maybe"] == [4, 5, None, 7]


@pytest.mark.parametrize("masks", [["mask"], []])
def test_pictures_that_are_bytes_are_named(masks):
    """A column of bytes is not decoded by images(), and the error says so."""
    sample = {"image": np.zeros((4, 4, 3), np.uint8), "mask": b"\x89PNG"}
    names = ("image",) if masks else ("image", "mask")
    with pytest.raises(ConfigError, match="column 'mask' has bytes of 4 bytes, which images"):
        images(*names, masks=masks, size=4)([sample])


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 5)])
def test_pictures_with_channels_first_are_refused(shape):
    """An array with more than four channels is an error and is not cut to its first three."""
    picture = np.zeros(shape, np.uint8)
    with pytest.raises(ConfigError, match=r"needs 1 to 4 channels on the last axis\. .*moveaxis"):
        images("image", size=4)([{"image": picture}])
    turned = np.moveaxis(np.zeros((3, 8, 8), np.uint8), 0, -1)
    assert images("image", size=4)([{"image": turned}])["image"].shape == (1, 3, 4, 4)


JSON_VALUES = {
    "dicts": [{"boxes": [[1.0, 2, 3, 4]], "labels": [i]} for i in range(8)],
    "lists": [[i, i + 1] for i in range(8)],
    "nested": [[{"bbox": [1, 2], "id": i}] for i in range(8)],
    "ragged": [{"labels": [1] * (i % 3)} for i in range(8)],
}


@pytest.mark.parametrize("how", ["here", "processes", "threads"])
@pytest.mark.parametrize("path", ["columns", "map", "map_batches", "collate_fn"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_json_is_a_list_of_what_was_written(tmp_path, how, path, batch_size):
    """Whether torch could transpose the values of a batch does not matter."""
    folder = str(tmp_path / "data")
    columns = dict.fromkeys(JSON_VALUES, "json")
    with MDSWriter(out=folder, columns={**columns, "word": "ndarray:int32"}) as writer:
        for values in zip(*JSON_VALUES.values(), strict=True):
            sample = dict(zip(JSON_VALUES, values, strict=True))
            writer.write({**sample, "word": np.zeros(2, np.int32)})
    dataset = StreamingDataset(local=folder, batch_size=batch_size)
    options = dict(HOWS[how])
    if path == "map":
        dataset = dataset.map(dict)
    elif path == "map_batches":
        dataset = dataset.map_batches(dict)
    elif path == "collate_fn":
        options["collate_fn"] = pad("word")
    batches = list(StreamingDataLoader(dataset, **options))
    for name, values in JSON_VALUES.items():
        assert [type(batch[name]) for batch in batches] == [list] * (8 // batch_size)
        rows = [str(value) for batch in batches for value in batch[name]]
        assert sorted(rows) == sorted(map(str, values))


def test_nested_arrays_are_collated_as_torch_does(make):
    """A function that returns arrays in a dict gets them back as a dict of tensors."""

    def nest(sample):
        return {"inputs": {"vector": sample["vector"], "id": sample["id"]}}

    batch = next(iter(StreamingDataLoader(make().map(nest))))
    assert batch["inputs"]["id"].shape == (8,)
    assert batch["inputs"]["vector"].shape[0] == 8


@pytest.mark.parametrize("function", [images("views", size=4), ragged("views"), pad("views")])
def test_several_pictures_in_a_sample_are_refused(function):
    """The error names the column, and does not show what NumPy made of the list."""
    pictures = [np.zeros((4, 5, 3), np.uint8), np.zeros((6, 7, 3), np.uint8)]
    for views in ([], pictures):
        with pytest.raises(ConfigError, match=r"column 'views' has (a )?list"):
            function([{"views": views}, {"views": pictures}])


@pytest.mark.parametrize("function", [ragged("x"), pad("x")])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn])
def test_types_that_numpy_lacks_are_named(function, dtype):
    """The remedy that the error names works."""
    samples = [{"x": torch.ones(n).to(dtype)} for n in (1, 2)]
    with pytest.raises(ConfigError, match=r"torch\.float32 in map"):
        function(samples)
    assert function([{"x": sample["x"].to(torch.float32)} for sample in samples])


def test_pictures_of_all_modes_are_upright_rgb():
    """Grey, palette, alpha, CMYK, 16 bits and EXIF need no thought."""
    grey = Image.fromarray(np.arange(0, 240, 10, dtype=np.uint8).reshape(4, 6))
    wide = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    modes = ["1", "L", "P", "LA", "RGB", "RGBA", "CMYK"]
    samples = [{"image": grey.convert(mode)} for mode in modes]
    samples += [{"image": wide}, {"image": np.asarray(wide)}]
    found = images("image", size=(4, 6))(samples)["image"]
    assert found.shape == (9, 3, 4, 6)
    for at, sample in enumerate(samples[:7]):
        rgb = np.asarray(sample["image"].convert("RGB"))
        assert np.array_equal(found[at], rgb.transpose(2, 0, 1))
    assert (found[7:] == torch.from_numpy(np.array(grey))).all()
    exif = grey.copy()
    exif.getexif()[0x0112] = 6
    turned = images("image", size=(6, 4))([{"image": exif}])["image"]
    assert np.array_equal(turned[0, 0], np.rot90(np.asarray(grey), -1))


IDS = (0, 1, 7, 20, 255)


def mask_of(height, width, seed):
    """Rectangles of class ids, two pixels apart in a picture of twice their size."""
    rng = np.random.default_rng(seed)
    return rng.choice(np.array(IDS, np.uint8), (height // 8, width // 8)).repeat(8, 0).repeat(8, 1)


@pytest.fixture
def segmented(tmp_path):
    """Pictures whose red channel is their mask, with the mask in four forms."""
    folder = str(tmp_path / "data")
    masks = {"grey": "png", "palette": "png", "pixels": "ndarray:uint8", "raw": "pil"}
    with MDSWriter(out=folder, columns={"image": "png", **masks}) as writer:
        for i in range(8):
            ids = mask_of(64, 48 + 8 * (i % 3), i)
            grey, palette = Image.fromarray(ids), Image.fromarray(ids, mode="P")
            palette.putpalette([(k * 37) % 256 for k in range(768)])
            image = Image.fromarray(np.stack([ids, 255 - ids, ids], axis=2))
            writer.write(
                {"image": image, "grey": grey, "palette": palette, "pixels": ids, "raw": grey}
            )
    return folder


@pytest.mark.parametrize("form", ["pil", {"image": "array"}])
def test_masks_keep_their_ids_and_follow_their_picture(segmented, how, form):
    """Masks are int64 of one channel, cut and flipped as the picture, and never interpolated."""
    names = ["grey", "palette", "pixels", "raw"]
    collate = images("image", masks=names, size=32, crop="random", flip=True)
    dataset = StreamingDataset(local=segmented, batch_size=4, images=form)
    for batch in StreamingDataLoader(dataset, collate_fn=collate, **HOWS[how]):
        for name in names:
            assert batch[name].dtype == torch.int64
            assert batch[name].shape == (4, 32, 32)
            assert torch.equal(batch[name], batch["image"][:, 0].long())


def test_scaled_and_normalised_batches_leave_masks_alone(segmented):
    """Resizing adds no id, and mean and std are those of pictures."""
    collate = images(
        "image", masks=["palette"], size=50, resize=90, mean=(0.5,) * 3, std=(0.2,) * 3
    )
    dataset = StreamingDataset(local=segmented, batch_size=8)
    batch = next(iter(StreamingDataLoader(dataset, collate_fn=collate)))
    assert batch["image"].dtype == torch.float32
    assert batch["palette"].dtype == torch.int64
    assert set(batch["palette"].unique().tolist()) <= set(IDS)
    # Away from the edges of rectangles the picture says the same.
    red = (batch["image"][:, 0] * 0.2 + 0.5) * 255
    assert (torch.abs(red - batch["palette"]) < 1).float().mean() > 0.5


def test_a_palette_that_became_colours_is_refused_with_a_remedy(segmented):
    """images='array' turns palettes into RGB, and the error names the way out."""
    collate = images("image", masks=["palette"], size=32)
    dataset = StreamingDataset(local=segmented, batch_size=8, images="array")
    with pytest.raises(FunctionError, match=r"images=\{'IMAGE': 'array'\}"):
        next(iter(StreamingDataLoader(dataset, collate_fn=collate)))
    with pytest.raises(ConfigError, match="images=: there is no column 'imag'"):
        StreamingDataset(local=segmented, images={"imag": "array"})
    with pytest.raises(ConfigError, match="images"):
        StreamingDataset(local=segmented, images={"image": "tensor"})


@pytest.mark.parametrize("mask", [np.zeros((4, 4)), np.zeros((4, 4, 3), np.uint8), [1, 2], "x"])
def test_what_is_no_mask_is_refused(mask):
    """A mask has one whole number for each pixel."""
    sample = {"image": np.zeros((4, 4, 3), np.uint8), "mask": mask}
    with pytest.raises(ConfigError, match="one whole number for each pixel"):
        images("image", masks=["mask"], size=4)([sample])


def test_masks_are_of_the_size_of_their_picture():
    """They could not be cut alike otherwise."""
    sample = {"image": np.zeros((4, 6, 3), np.uint8), "mask": np.zeros((2, 3), np.uint8)}
    with pytest.raises(ConfigError, match="2 x 3 pixels for a picture of 4 x 6"):
        images("image", masks=["mask"], size=2)([sample])
    with pytest.raises(ConfigError, match="masks of images"):
        images("image", masks="mask", size=2)


def draw_globally(sample):
    """Draw from the three global generators."""
    numbers = [random.random(), np.random.random(), torch.rand(1).item()]  # noqa: NPY002
    return {"id": sample["id"], "numbers": np.array(numbers)}


@pytest.mark.parametrize("worlds", [({}, {})])
def test_seeded_functions_draw_the_same_in_every_world(make, worlds):
    """Global generators follow the place in the order, and are as before after each call."""
    function = seeded(draw_globally)
    dataset = make(shuffle=True).map(function)
    runs = [
        rows(list(StreamingDataLoader(make(shuffle=True).map(function), **options)), "numbers")
        for options in worlds
    ]
    before = random.getstate(), torch.get_rng_state()
    assert len(list(dataset)) == 100
    assert before[0] == random.getstate()
    assert torch.equal(before[1], torch.get_rng_state())
    first, *others = ({i: row.tolist() for i, row in run.items()} for run in runs)
    assert len({tuple(row) for row in first.values()}) == 100
    assert others == [first] * (len(worlds) - 1)
    assert "map(draw_globally)" in repr(dataset)


def test_seeded_functions_are_refused_on_threads(make):
    """Threads share the generators; the remedy that the error names works."""
    dataset = make().map(seeded(draw_globally))
    with pytest.raises(ConfigError, match="worker_type='processes'"):
        StreamingDataLoader(dataset, num_workers=2, worker_type="threads")
    assert next(iter(StreamingDataLoader(dataset, num_workers=2, worker_type="processes")))
    with pytest.raises(ConfigError, match="needs a function"):
        seeded(3)
