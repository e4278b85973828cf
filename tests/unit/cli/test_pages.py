"""Pages, displays of a notebook and pictures in a terminal, of data that is a stranger's."""

import base64
import io
import re
import wave

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from rich.console import Console

from mds import LocalDataset, MDSWriter, StreamingDataset
from mds import _preview as preview
from mds._cli import main
from mds._index.column_notes import NAME, make_notes, pack_notes
from mds._preview import MAX_SIDE, make_small, to_data_uri, to_half_blocks
from mds.storage import open_store

EVIL = "<script>alert(1)</script>\x1b[2J\"'&"


def jpeg(width=640, height=480, color=(250, 10, 20)):
    file = io.BytesIO()
    Image.new("RGB", (width, height), color).save(file, "JPEG", comment=b"<script>in it</script>")
    return file.getvalue()


def sound():
    file = io.BytesIO()
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(8000)
        made.writeframes(b"\0\0" * 100)
    return file.getvalue()


@pytest.fixture
def evil(tmp_path):
    """A dataset whose texts, names and pictures would do something on a careless page."""
    columns = {EVIL: "str", "bytes": "bytes", "image": "jpeg", "sound": "bytes", "x": "ndarray"}
    with MDSWriter(out=str(tmp_path / "d"), columns=columns) as writer:
        for number in range(5):
            writer.write(
                {
                    EVIL: EVIL * (1 + 500 * number),
                    "bytes": b"<b>",
                    "image": jpeg() if number else jpeg()[:-2000],
                    "sound": sound(),
                    "x": np.arange(3),
                }
            )
    index = LocalDataset(str(tmp_path / "d"))._index.fingerprint()
    notes = make_notes({"x": [EVIL, "b"]}, {"image": EVIL})
    open_store(str(tmp_path / "d")).put(NAME, pack_notes(notes, index))
    return str(tmp_path / "d")


def check_harmless(text):
    """No tag but ours, no attribute of a stranger's, nothing loaded from elsewhere."""
    tags = set(re.findall(r"<\s*/?\s*([a-zA-Z0-9!]+)", text))
    assert tags <= {
        *("!doctype", "html", "head", "meta", "title", "style", "body", "h3", "p", "div", "table"),
        *("thead", "tbody", "tr", "th", "td", "img", "br", "audio"),
    }
    assert not re.search(r"<[^>]*\son\w+\s*=", text)
    assert all(uri.startswith("data:") for uri in re.findall(r'(?:src|href)="([^"]*)"', text))
    assert "\x1b" not in text
    assert "in it" not in text


def test_a_page_is_one_file_without_harm(evil, tmp_path):
    """Texts are escaped and bounded, pictures are small and made anew, sounds can be heard."""
    page = tmp_path / "p.html"
    done = CliRunner().invoke(main, ["head", evil, "-n", "3", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert done.output == f"{page}\n"
    text = page.read_text(encoding="utf-8")
    check_harmless(text)
    assert "default-src 'none'" in text
    assert len(text) < 60_000
    shown = re.findall(r'src="data:image/png;base64,([^"]*)"', text)
    assert len(shown) == 2  # the first picture is broken
    for each in shown:
        with Image.open(io.BytesIO(base64.b64decode(each))) as picture:
            assert max(picture.size) <= MAX_SIDE
    assert text.count("<audio controls") == 3
    assert "640 x 480" in text


def test_a_notebook_shows_schema_and_first_samples(evil):
    """Of both kinds of datasets, with what is noted of columns; and the explanation as a table."""
    for dataset in (LocalDataset(evil), StreamingDataset(local=evil, batch_size=2)):
        text = dataset._repr_html_()
        check_harmless(text)
        assert "5 samples" in text
        assert text.count("data:image/png") == 2
        assert "1 b" in text
    told = dataset.explain()
    assert isinstance(told, str)
    check_harmless(told._repr_html_())
    assert "<td>num_canonical_nodes</td>" in told._repr_html_()


def test_a_display_does_not_fail(evil, tmp_path):
    """What cannot be read is told where it would stand."""
    (tmp_path / "d" / "shard.00000.mds").unlink()
    (tmp_path / "d" / NAME).write_bytes(b"junk")
    text = LocalDataset(evil)._repr_html_()
    assert "The columns cannot be read" in text
    assert "The first samples cannot be shown" in text


def test_a_display_shows_samples_of_a_class_of_the_callers(evil):
    """A sample need not be a dict."""

    class Pair(LocalDataset):
        def get_item(self, sample_id):
            return (sample_id, "<b>")

    assert "(0, &#x27;&lt;b&gt;&#x27;)" in Pair(evil)._repr_html_()


def test_pictures_are_bounded(monkeypatch):
    """What would take too much memory is not decoded; other modes come out."""
    monkeypatch.setattr(preview, "MAX_PIXELS", 1000)
    assert make_small(Image.new("RGB", (40, 40))) is None
    assert to_data_uri(Image.new("RGB", (40, 40))) is None
    for mode in ("1", "L", "P", "RGBA", "CMYK", "I;16", "F", "LA"):
        assert make_small(Image.new(mode, (20, 10))).mode == "RGB"


def test_half_blocks_have_the_colours_of_the_picture():
    """Two pixels a letter, from the top."""
    picture = Image.new("RGB", (2, 2), (255, 0, 0))
    picture.paste((0, 0, 255), (0, 1, 2, 2))
    drawn = to_half_blocks(picture, 10)
    assert drawn.plain == "\u2580\u2580\n"
    assert str(drawn.spans[0].style) == "#ff0000 on #0000ff"


@pytest.mark.parametrize(
    ("settings", "is_drawn"),
    [
        ({"color_system": "truecolor", "force_terminal": True}, True),
        ({"color_system": "truecolor", "force_terminal": True, "no_color": True}, False),
        ({"color_system": "standard", "force_terminal": True}, False),
        ({"color_system": None, "force_terminal": False}, False),
    ],
)
def test_only_a_terminal_that_can_shows_pictures(evil, settings, is_drawn):
    """Where colours are all there; else the words alone."""
    from mds._cli.datasets import head
    from mds._cli.inspect_commands import _show_sample as _show

    file = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    where = Console(file=file, width=100, _environ={"TERM": "xterm"}, **settings)
    _show(1, list(head(evil, 2))[1], where)
    file.flush()
    text = file.buffer.getvalue().decode()
    assert ("\u2580" in text) == is_drawn
    assert "640 x 480" in text
