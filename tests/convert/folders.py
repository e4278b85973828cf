"""Forty folders as people have them: their files, and what becomes of them without an option.

Each is (name, files, title, columns, samples), or (name, files, None, words) for a source that is
stopped, with words of the message that say which option helps. ``JPEG``, ``PNG`` and ``WAV`` stand
for the bytes of such files.
"""

JPEG, PNG, WAV = object(), object(), object()

IMAGE, LABELLED = ["image", "path"], ["class", "image", "label"]

FOLDERS = [
    ("flat photographs", {"a.jpg": JPEG, "b.jpg": JPEG}, "images", IMAGE, 2),
    ("capital endings", {"A.JPG": JPEG, "B.JPEG": JPEG}, "images", IMAGE, 2),
    ("classes", {"cat/1.jpg": JPEG, "dog/1.jpg": JPEG}, "image folder", LABELLED, 2),
    ("one class", {"cat/1.jpg": JPEG, "cat/2.jpg": JPEG}, "image folder", LABELLED, 2),
    ("classes with spaces", {"a cat/1.jpg": JPEG, "ein Hünd/1.jpg": JPEG}, "image folder", None, 2),
    ("classes of png", {"cat/1.png": PNG, "dog/1.png": PNG}, "image folder", LABELLED, 2),
    ("mixed pictures", {"cat/1.png": PNG, "dog/1.jpg": JPEG}, "image folder", LABELLED, 2),
    ("splits of classes", {"train/a/1.jpg": JPEG, "test/a/1.jpg": JPEG}, "image folder", None, 2),
    ("classes of splits", {"a/train/1.jpg": JPEG, "a/val/1.jpg": JPEG}, "image folder", None, 2),
    ("splits of photographs", {"train/1.jpg": JPEG, "test/2.jpg": JPEG}, "images", IMAGE, 2),
    ("photographs and a readme", {"1.jpg": JPEG, "README.md": "x"}, "images", IMAGE, 1),
    ("photographs of a mac", {"1.jpg": JPEG, ".DS_Store": "x", "._1.jpg": "x"}, "images", None, 1),
    (
        "a table of labels",
        {"1.jpg": JPEG, "2.jpg": JPEG, "labels.csv": "file,kind\n1.jpg,a\n2.jpg,b\n"},
        "images with a table of labels",
        None,
        2,
    ),
    ("sounds", {"a.wav": WAV, "b.wav": WAV}, "audio", ["audio", "path"], 2),
    ("sounds in classes", {"a/1.wav": WAV, "b/1.wav": WAV}, "audio folder", None, 2),
    ("documents", {"a.txt": "one", "b.txt": "two"}, "text documents", ["path", "text"], 2),
    ("one document", {"a.txt": "one"}, "text documents", ["path", "text"], 1),
    ("code", {"a.py": "x = 1", "sub/b.py": "y = 2"}, "text documents", ["path", "text"], 2),
    ("an empty document", {"a.txt": "", "b.txt": "x"}, "text documents", ["path", "text"], 2),
    ("document with a mark", {"a.txt": b"\xef\xbb\xbfhello"}, "text documents", None, 1),
    ("json lines", {"a.jsonl": '{"a": 1}\n{"a": 2}\n'}, "JSON lines", ["a"], 2),
    ("json lines without an end", {"a.jsonl": '{"a": 1}\n{"a": 2}'}, "JSON lines", ["a"], 2),
    ("json lines of windows", {"a.jsonl": '{"a": 1}\r\n{"a": 2}\r\n'}, "JSON lines", ["a"], 2),
    ("json lines with gaps", {"a.jsonl": '{"a": 1}\n\n\n{"a": 2}\n'}, "JSON lines", ["a"], 2),
    ("a json list", {"a.json": '[{"a": 1}, {"a": 2}]'}, "JSON list", ["a"], 2),
    ("json in folders", {"x/a.jsonl": '{"a": 1}', "y/b.jsonl": '{"a": 2}'}, "JSON lines", ["a"], 2),
    ("a table", {"a.csv": "a,b\n1,x\n2,y\n"}, "table of delimited text", ["a", "b"], 2),
    ("a table of semicolons", {"a.csv": "a;b\n1;x\n"}, "table of delimited text", ["a", "b"], 1),
    ("a table of tabs", {"a.tsv": "a\tb\n1\tx\n"}, "table of delimited text", ["a", "b"], 1),
    ("a table with a mark", {"a.csv": b"\xef\xbb\xbfa,b\n1,x\n"}, None, ["a", "b"], 1),
    ("a quoted table", {"a.csv": 'a,b\n1,"x\ny"\n'}, "table of delimited text", ["a", "b"], 1),
    ("a frame of pandas", {"a.csv": ",a\n0,x\n"}, "table of delimited text", ["a", "column_0"], 1),
    ("tables of splits", {"train.csv": "a\n1\n", "test.csv": "a\n2\n"}, None, None, 2),
    ("a table and a license", {"a.csv": "a\n1\n", "LICENSE": "MIT"}, None, ["a"], 1),
    ("binary files", {"a.bin": b"\0\1", "b.bin": b"\2"}, None, ["bytes", "path"], 2),
    ("names of other scripts", {"日本.txt": "x", "emoji 🙂.txt": "y"}, "text documents", None, 2),
    ("a deep folder", {"a/b/c/d/e/f.txt": "x"}, "text documents", ["path", "text"], 1),
]

STOPPED = [
    ("nothing", {}, "holds no file to convert"),
    ("hidden files", {".a": "x"}, "holds no file to convert"),
    ("an empty table", {"a.csv": ""}, "no record"),
    ("a header alone", {"a.csv": "a,b\n"}, "no record"),
    ("a table of cp1252", {"a.csv": "näme,b\nJosé,x\n".encode("cp1252")}, "--encoding"),
    ("lines of cp1252", {"a.jsonl": '{"a": "José"}\n'.encode("cp1252")}, "--encoding"),
    ("a document of cp1252", {"a.txt": "José".encode("cp1252")}, "--encoding"),
    ("a name twice", {"a.csv": "a,a\n1,2\n"}, "two columns"),
    ("other columns", {"a.csv": "a\n1\n", "b.csv": "b\n1\n"}, "one by one"),
    ("a short row", {"a.csv": "a,b\n1\n"}, "1 values for 2 columns"),
    ("no json", {"a.jsonl": "hello\n"}, "Expecting value"),
    ("a list of numbers", {"a.jsonl": "1\n2\n"}, "expected an object"),
    ("junk called jpg", {"a.jpg": b"junk", "b.jpg": b"junk"}, "no image"),
    ("junk called wav", {"a.wav": b"junk"}, "no wav"),
    (
        "lines and a document",
        {"a.jsonl": '{"a": 1}', "b.jsonl": '{"a": 2}', "c.txt": "x"},
        "--include",
    ),
    ("a table and a picture", {"a.csv": "a\n1\n", "b.csv": "a\n2\n", "c.jpg": JPEG}, "--as files"),
    ("lists and lines", {"a.json": "[]", "b.json": '{"a": 1}'}, "--include"),
]
