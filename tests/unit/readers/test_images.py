"""Images as arrays: decoded by whatever is installed, in one shape for all JPEGs."""

import io
import sys

import numpy as np
import pytest
from PIL import Image, ImageOps

from mds import LocalDataset, MDSWriter, StreamingDataLoader, StreamingDataset
from mds.encodings import _images as pixels
from mds.errors import ConfigError, EncodingError


def picture(mode="RGB", size=(48, 32)):
    """A smooth picture, so that JPEG changes little."""
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    rgb = np.stack([x, y, (x + y) / 2], axis=-1).astype(np.uint8)
    return Image.fromarray(rgb).convert(mode)


def jpeg(mode="RGB"):
    """A JPEG file."""
    file = io.BytesIO()
    picture(mode).save(file, format="JPEG", quality=95)
    return file.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Eight samples: a JPEG (colour and grey in turn), a PNG with alpha, raw pixels."""
    out = str(tmp_path / "data")
    with MDSWriter(out=out, columns={"j": "jpeg", "p": "png", "r": "pil"}) as writer:
        for i in range(8):
            sample = {"j": jpeg("RGB" if i % 2 else "L"), "p": picture("RGBA"), "r": picture("L")}
            writer.write(sample)
    return out


def test_arrays_are_the_pixels_that_pillow_sees(folder):
    """JPEGs as RGB whatever they store, the rest with the channels that it has."""
    plain, arrays = LocalDataset(folder), LocalDataset(folder, images="array")
    for image, array in zip(plain[:], arrays[:], strict=True):
        wanted = np.asarray(image["j"].convert("RGB")).astype(int)
        assert array["j"].shape == (32, 48, 3)
        assert array["j"].dtype == np.uint8
        assert abs(array["j"] - wanted).max() <= 2
        assert np.array_equal(array["p"], np.asarray(image["p"]))
        assert np.array_equal(array["r"], np.asarray(image["r"]))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_images_become_tensors(folder, workers):
    """Without a collate function, and on threads when there are workers."""
    dataset = StreamingDataset(local=folder, batch_size=4, images="array")
    loader = StreamingDataLoader(dataset, num_workers=workers)
    assert [tuple(batch["j"].shape) for batch in loader] == [(4, 32, 48, 3)] * 2


def test_without_the_binding_pillow_decodes(folder, monkeypatch):
    """The extra makes it faster, not possible."""
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    pixels.jpeg_decoder.cache_clear()
    try:
        assert LocalDataset(folder, images="array")[0]["j"].shape == (32, 48, 3)
    finally:
        pixels.jpeg_decoder.cache_clear()


def test_a_broken_image_is_an_error_that_names_it(tmp_path):
    """The file, the sample and the column."""
    out = str(tmp_path / "data")
    with MDSWriter(out=out, columns={"image": "jpeg"}) as writer:
        writer.write({"image": jpeg()[:300]})
    with pytest.raises(EncodingError, match=r"shard\.00000\.mds, sample 0, column 'image'"):
        LocalDataset(out, images="array")[0]


def test_another_word_is_refused(folder):
    """With the two that there are."""
    with pytest.raises(ConfigError, match="'pil' or 'array', or a dict"):
        StreamingDataset(local=folder, images="tensor")


def test_pictures_in_lists_and_those_that_may_be_missing_are_arrays_too(tmp_path):
    picture = Image.new("RGB", (4, 3), (10, 20, 30))
    columns = {"one": "optional[png]", "some": "list[png]"}
    with MDSWriter(out=str(tmp_path), columns=columns) as writer:
        writer.write({"one": picture, "some": [picture, picture]})
        writer.write({"one": None, "some": []})
    first, second = StreamingDataset(local=str(tmp_path), images="array")
    assert first["one"].shape == (3, 4, 3)
    assert first["one"].tolist() == first["some"][1].tolist() == np.asarray(picture).tolist()
    assert second == {"one": None, "some": []}


def saved(image, kind, **options):
    """The bytes of a picture's file."""
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


@pytest.mark.parametrize("column", ["jpeg", "png", "optional[jpeg]"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_pictures_are_decoded_by_content_and_not_by_column(tmp_path, column, kind):
    """A file of any kind comes as RGB pixels from a column of any kind."""
    with MDSWriter(out=str(tmp_path), columns={"image": column}) as writer:
        writer.write({"image": saved(picture(), kind)})
    wanted = np.asarray(Image.open(io.BytesIO(saved(picture(), kind))).convert("RGB"))
    found = LocalDataset(str(tmp_path), images="array")[0]["image"]
    assert found.shape == wanted.shape
    assert abs(found.astype(int) - wanted).max() <= 2


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "I;16"])
def test_a_column_of_jpeg_is_rgb_in_every_mode(tmp_path, mode):
    """Pictures of one column have three channels, also those of 16 bits."""
    grey = picture("L")
    wide = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    image = wide if mode == "I;16" else grey.convert(mode)
    with MDSWriter(out=str(tmp_path), columns={"image": "jpeg"}) as writer:
        writer.write({"image": saved(image, "PNG")})
    found = LocalDataset(str(tmp_path), images="array")[0]["image"]
    wanted = np.asarray(grey if mode == "I;16" else image.convert("RGB"))
    assert found.shape == (32, 48, 3)
    assert np.array_equal(found, wanted if wanted.ndim == 3 else wanted[..., None].repeat(3, 2))


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_arrays_are_turned_upright(tmp_path, kind, orientation):
    """Pixels are where EXIF says that they belong."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = saved(picture(), kind, exif=exif)
    with MDSWriter(out=str(tmp_path), columns={"image": kind.lower()}) as writer:
        writer.write({"image": data})
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
    found = LocalDataset(str(tmp_path), images="array")[0]["image"]
    assert found.shape == (upright.height, upright.width, 3)
    assert abs(found.astype(int) - np.asarray(upright)).max() <= 2


def test_a_damaged_orientation_is_no_orientation(tmp_path):
    """An EXIF segment that cannot be read leaves the picture as it is."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture(), "JPEG", exif=exif)
    at = data.index(b"Exif\0\0") + 6
    with MDSWriter(out=str(tmp_path), columns={"image": "jpeg"}) as writer:
        writer.write({"image": data[:at] + b"\xff" * 8 + data[at + 8 :]})
    assert LocalDataset(str(tmp_path), images="array")[0]["image"].shape == (32, 48, 3)


def test_jpegs_in_a_row_are_arrays(tmp_path):
    """A column jpeg_array gives a list of pixels."""
    with MDSWriter(out=str(tmp_path), columns={"views": "jpeg_array"}) as writer:
        writer.write({"views": [jpeg(), jpeg("L")]})
    found = LocalDataset(str(tmp_path), images="array")[0]["views"]
    assert [view.shape for view in found] == [(32, 48, 3)] * 2
