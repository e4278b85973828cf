"""The classes of a domain give what their users expect from shards with the usual columns."""

import io
import os

import numpy as np
import pytest
import streaming
import torch
from streaming import MDSWriter
from streaming.multimodal import StreamingInsideWebVid, StreamingOutsideGIWebVid
from streaming.text import StreamingC4, StreamingEnWiki
from streaming.vision import StreamingADE20K, StreamingCIFAR10, StreamingCOCO, StreamingImageNet
from streaming.vision.convert.base import convert_image_class_dataset

import mds


def image(shade, mode="RGB"):
    from PIL import Image

    return Image.new(mode, (6, 4), shade if mode == "L" else (shade, shade, shade))


def jpeg(shade):
    file = io.BytesIO()
    image(shade).save(file, "JPEG")
    return file.getvalue()


def write(out, columns, samples):
    with MDSWriter(columns=columns, out=str(out)) as writer:
        for sample in samples:
            writer.write(sample)
    return str(out)


def test_image_classes(tmp_path):
    """Pairs of image and class, changed by transforms; the converter writes what they read."""
    pairs = [(image(n), n % 3) for n in range(9)]
    convert_image_class_dataset(pairs, str(tmp_path), split="train", progress_bar=False)
    options = {"local": str(tmp_path), "split": "train", "batch_size": 3, "num_canonical_nodes": 1}
    x, y = StreamingCIFAR10(**options)[4]
    assert (x.size, y) == ((6, 4), 1)
    changed = StreamingCIFAR10(
        **options, transform=lambda x: np.asarray(x).mean(), target_transform=str
    )
    assert changed[4] == (4.0, "1")
    assert list(StreamingCIFAR10(**options, transforms=lambda x, y: y)) == [0, 1, 2] * 3
    with pytest.raises(ValueError):
        StreamingCIFAR10(**options, transforms=print, transform=print)
    with pytest.raises(TypeError):
        StreamingCIFAR10(local=str(tmp_path), split="train")
    with pytest.raises(TypeError):
        StreamingCIFAR10(**options, replication=2)


def test_imagenet(tmp_path):
    """JPEG images with classes, in a subclass of a user's own too."""
    out = write(
        tmp_path / "in", {"i": "int", "x": "jpeg", "y": "int"}, [{"i": 0, "x": jpeg(9), "y": 5}]
    )

    class Mine(StreamingImageNet):
        def __init__(self, scale, **options):
            super().__init__(**options)
            self.scale = scale

        def get_item(self, sample_id, retry=7):
            x, y = super().get_item(sample_id, retry)
            return x, y * self.scale

    dataset = Mine(10, local=out, batch_size=1)
    assert dataset[0][1] == 50
    assert dataset.partition_algo == "orig"


def test_ade20k(tmp_path):
    """An image and its mask, changed together and then each alone."""
    file = io.BytesIO()
    image(7, "L").save(file, "PNG")
    columns = {"uid": "bytes", "x": "jpeg", "y": "png"}
    out = write(tmp_path / "ade", columns, [{"uid": b"a", "x": jpeg(9), "y": file.getvalue()}])
    dataset = StreamingADE20K(
        local=out,
        batch_size=1,
        joint_transform=lambda x, y: (x.rotate(180), y.rotate(180)),
        target_transform=lambda y: int(np.asarray(y).max()),
    )
    x, y = dataset[0]
    assert (x.size, y) == ((6, 4), 7)


def test_coco(tmp_path):
    """An image with its number, its size, its boxes and their labels."""
    columns = {
        "img": "jpeg",
        "img_id": "int",
        "htot": "int",
        "wtot": "int",
        "bbox_sizes": "ndarray:float32",
        "bbox_labels": "ndarray:int64",
    }
    sample = {
        "img": jpeg(9),
        "img_id": 3,
        "htot": 4,
        "wtot": 6,
        "bbox_sizes": np.ones((2, 4), np.float32),
        "bbox_labels": np.array([1, 2]),
    }
    out = write(tmp_path / "coco", columns, [sample])
    picture, number, size, boxes, labels = StreamingCOCO(local=out, batch_size=1)[0]
    assert (picture.mode, number, size, boxes.shape) == ("RGB", 3, (4, 6), (2, 4))
    assert labels.tolist() == [1, 2]
    turned = StreamingCOCO(local=out, batch_size=1, transform=lambda i, s, b, n: (0, s[::-1], b, n))
    assert turned[0][:3] == (0, 3, (6, 4))


def test_enwiki(tmp_path):
    """Bytes become tensors of int32, weights of float32."""
    sample = {
        "input_ids": np.arange(4, dtype=np.int32).tobytes(),
        "masked_lm_weights": np.ones(2, np.float32).tobytes(),
    }
    out = write(tmp_path / "wiki", dict.fromkeys(sample, "bytes"), [sample])
    found = StreamingEnWiki(local=out, batch_size=1)[0]
    assert found["input_ids"].dtype == torch.int32
    assert found["input_ids"].tolist() == [0, 1, 2, 3]
    assert found["masked_lm_weights"].dtype == torch.float32


def test_c4_knows_one_way_of_grouping(tmp_path):
    """Another group_method than 'truncate' is refused before anything is fetched."""
    with pytest.raises(ValueError, match="truncate"):
        StreamingC4(
            local=str(tmp_path), tokenizer_name="x", max_seq_len=8, group_method="concatenate"
        )


def test_videos_in_and_beside_the_shards(tmp_path):
    """A video is bytes of the sample, or a file that is fetched once and kept."""
    inside = write(tmp_path / "in", {"content": "bytes"}, [{"content": b"video"}])
    assert StreamingInsideWebVid(local=inside, batch_size=1)[0]["content"] == b"video"
    (tmp_path / "videos" / "a").mkdir(parents=True)
    (tmp_path / "videos" / "a" / "1.mp4").write_bytes(b"other")
    outside = write(tmp_path / "out", {"content_path": "str"}, [{"content_path": "a/1.mp4"}])
    dataset = StreamingOutsideGIWebVid(
        local=outside,
        batch_size=1,
        extra_local=str(tmp_path / "kept"),
        extra_remote=str(tmp_path / "videos"),
    )
    assert dataset[0]["content"] == b"other"
    os.unlink(tmp_path / "videos" / "a" / "1.mp4")
    assert dataset[0]["content"] == b"other"


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_json_are_what_torch_makes_of_them(tmp_path, workers):
    """The incumbent collates with torch, which transposes dicts; natively they stay a list."""
    out = str(tmp_path / "data")
    with mds.MDSWriter(out=out, columns={"meta": "json"}) as writer:
        for number in range(8):
            writer.write({"meta": {"number": number}})
    (batch, _), (plain, _) = (
        list(library.StreamingDataLoader(dataset, batch_size=4, num_workers=workers))
        for library in (streaming, mds)
        for dataset in [library.StreamingDataset(local=out, batch_size=4)]
    )
    assert batch["meta"]["number"].tolist() == [each["number"] for each in plain["meta"]]
