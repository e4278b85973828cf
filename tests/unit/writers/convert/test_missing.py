"""Missing cells and keys: nothing, a value that was asked for, or an error that names both."""

import re
import shlex

import numpy as np
import pytest
from click.testing import CliRunner
from quickly import convert, prepare

from mds import LocalDataset
from mds._cli import convert as command
from mds.errors import ConfigError, RecordError

TABLE = "id,age,name\n1,31,a\n2,,b\n3,40,\n"


def test_a_number_with_an_empty_cell_stays_text_and_the_plan_says_why(kit):
    """Nothing is guessed: the note names the options."""
    made = prepare(kit.write("t.csv", TABLE), kit.out)
    assert kit.encodings(made) == {"age": "str", "id": "int", "name": "str"}
    (age,) = [column for column in made.columns if column.name == "age"]
    assert age.note == "some cells are empty, others are int: see --null and --fill"


def test_null_cells_are_nothing(kit):
    """With --null '' columns with empty cells are optional, numbers stay numbers."""
    made = prepare(kit.write("t.csv", TABLE), kit.out, null="")
    assert kit.encodings(made) == {"age": "optional[int]", "id": "int", "name": "optional[str]"}
    made.run()
    assert [sample["age"] for sample in kit.samples()] == [31, None, 40]
    assert [sample["name"] for sample in kit.samples()] == ["a", "b", None]


def test_fill_keeps_the_plain_number(kit):
    """A value in place of nothing, so that every reader of the format can read the column."""
    path = kit.write("t.csv", TABLE.replace("2,,", "2,NA,"))
    made = prepare(path, kit.out, null=["NA"], fill={"age": -1})
    assert kit.encodings(made)["age"] == "int"
    made.run()
    assert [sample["age"] for sample in kit.samples()] == [31, -1, 40]
    assert kit.samples()[2]["name"] == ""  # NA is missing, the empty cell is text


def test_an_optional_column_that_was_asked_for_takes_empty_cells(kit):
    """No further option is needed; what is there is checked as ever."""
    path = kit.write("t.csv", TABLE)
    convert(path, kit.out, encodings={"age": "optional[uint8]"})
    assert [sample["age"] for sample in kit.samples()] == [31, None, 40]
    with pytest.raises(RecordError, match="300 does not fit uint8"):
        convert(
            kit.write("u.csv", TABLE.replace("31", "300")),
            kit.out + "2",
            encodings={"age": "optional[uint8]"},
        )


def test_nan_of_a_float_column(kit):
    """Floats may be filled with nan."""
    convert(kit.write("t.csv", TABLE), kit.out, null="", fill="age=nan", encodings="age:float32")
    ages = [float(sample["age"]) for sample in kit.samples()]
    assert ages[0] == 31
    assert ages[1] != ages[1]


def test_missing_keys_of_json_lines(kit):
    """Null and absent alike: optional, filled, or an error that says how."""
    path = kit.write("t.jsonl", '{"n": 1, "x": 2.5}\n{"n": 2}\n{"n": 3, "x": null}\n')
    convert(path, kit.out, encodings={"x": "optional[float64]"})
    assert [sample["x"] for sample in kit.samples()] == [2.5, None, None]
    convert(path, kit.out + "2", encodings={"x": "float64"}, fill={"x": 0})
    assert [sample["x"] for sample in kit.samples(kit.out + "2")] == [2.5, 0, 0]
    with pytest.raises(RecordError, match="line 2: there is no column 'x'"):
        convert(path, kit.out + "3", encodings={"x": "float64"})


def test_a_cell_that_is_missing_where_none_may_be(kit):
    """The error says both ways out."""
    path = kit.write("t.csv", "a\n" + "1\n" * 3 + "NA\n")
    with pytest.raises(RecordError, match=r"line 5.*missing.*--fill.*optional\[int32\]"):
        convert(path, kit.out, encodings={"a": "int32"}, null="NA")


def test_a_fill_of_no_column_is_refused(kit):
    """So is one that is no pair."""
    path = kit.write("t.csv", TABLE)
    with pytest.raises(ConfigError, match="fill='agee' is not a column"):
        prepare(path, kit.out, fill={"agee": 1})
    with pytest.raises(ConfigError, match="Write name=value"):
        prepare(path, kit.out, fill="age")


#: Ending of a source with a thousand plain records, the record after them, and the last sample with
#: each remedy that the error names (VALUE is 5).
LATE_RECORDS = [
    ("jsonl", '{"v": 1}', '{"v": 2.5}', [{"v": 2.5}]),
    ("jsonl", '{"v": 1}', '{"v": null}', [{"v": 5}, {"v": None}]),
    ("jsonl", '{"v": 1}', "{}", [{"v": 5}, {"v": None}]),
    ("jsonl", '{"v": 1}', '{"v": [1]}', [{"v": [1]}]),
    ("jsonl", '{"v": 1}', '{"v": "x"}', [{"v": "x"}]),
    ("jsonl", '{"v": 1}', '{"v": true}', [{"v": True}]),
    ("jsonl", '{"v": 1}', f'{{"v": {2**70}}}', [{"v": 2**70}]),
    ("jsonl", '{"v": 0.5}', '{"v": null}', [{"v": 5.0}, {"v": None}]),
    ("jsonl", '{"v": "a"}', '{"v": {"b": 1}}', [{"v": {"b": 1}}]),
    ("jsonl", '{"v": 1}', '{"v": 1, "b c\'d": 2}', [{"v": 1, "b c'd": 2}, {"v": 1}]),
    ("csv", "v,w\n1,2", "1,", [{"v": 1, "w": 5}, {"v": 1, "w": None}]),
    ("csv", "v,w\n1,2", "1,NA", [{"v": 1, "w": 5}, {"v": 1, "w": None}]),
    ("csv", "v,w\n1,0.5", "1,n/a", [{"v": 1, "w": 5.0}, {"v": 1, "w": None}]),
    ("csv", "v,w\n1,2", "1,2.5", [{"v": 1, "w": 2.5}]),
    ("csv", "v,w\n1,2", "1,abc", [{"v": 1, "w": "abc"}]),
    ("csv", "v,w\n1,12", "1,007", [{"v": 1, "w": "007"}]),
    ("csv", "v,w\n1,0.5", f"1,{2**53 + 1}", [{"v": 1, "w": str(2**53 + 1)}]),
]


@pytest.mark.parametrize(("ending", "first", "late", "samples"), LATE_RECORDS)
@pytest.mark.parametrize("language", ["shell", "Python"])
def test_a_late_record_of_another_type_names_the_options_that_take_it(
    kit, language, ending, first, late, samples
):
    """Each remedy works when copied; none of them leaves the record out."""
    header, _, record = first.rpartition("\n")
    text = f"{header}\n" * bool(header) + f"{record}\n" * 1500 + f"{late}\n"
    source = kit.write(f"late.{ending}", text)
    with pytest.raises(RecordError, match="Add --overwrite") as error:
        convert(source, kit.out)
    # "Add OPTIONS (ARGUMENTS) to ..., or OPTIONS (ARGUMENTS) to ..."
    remedies = re.findall(r"(--overwrite [^()]*) \((overwrite=.*?)\)(?= to |\. )", str(error.value))
    assert len(remedies) == len(samples), str(error.value)
    for (options, arguments), sample in zip(remedies, samples, strict=True):
        if language == "shell":
            words = [word.replace("VALUE", "5") for word in shlex.split(options)]
            run = CliRunner().invoke(command, [source, kit.out, *words, "--num-workers", "1"])
            assert run.exit_code == 0, run.output
        else:
            values = {}
            exec(f"values.update({arguments.replace('VALUE', '5')})", {"values": values})
            convert(source, kit.out, **values)
        assert kit.samples()[-1] == sample


def test_a_chosen_encoding_still_takes_what_it_can(kit):
    """Leading zeros and truth values go where the user wants numbers."""
    convert(kit.write("t.csv", "zip\n007\n8\n"), kit.out, encodings={"zip": "int"})
    assert [sample["zip"] for sample in kit.samples()] == [7, 8]
    source = kit.write("t.jsonl", '{"yes": true}\n')
    convert(source, kit.out + "2", encodings={"yes": "uint8"})
    assert kit.samples(kit.out + "2")[0]["yes"] == 1


def test_a_remedy_for_a_name_that_no_option_can_have(kit):
    """A comma separates the names of columns on the command line, so Python is named."""
    source = kit.write("t.jsonl", '{"v": 1}\n' * 1500 + '{"v": 1, "a,b": 2}\n')
    with pytest.raises(
        RecordError, match="which the records at the beginning do not have"
    ) as error:
        convert(source, kit.out)
    arguments = re.search(r"Add (overwrite=.*) in Python to write it\. ", str(error.value))[1]
    assert arguments == "overwrite=True, encodings={'a,b': 'json'}"
    convert(source, kit.out, overwrite=True, encodings={"a,b": "json"})
    assert kit.samples()[-1] == {"v": 1, "a,b": 2}


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("float32", 1e300),
        ("float16", 70000),
        ("float32", "1e300"),
        ("float64", "1e999"),
        ("optional[float32]", 1e300),
        ("ndarray:float32", [1e300, 1]),
        ("ndarray:float32", [1, None]),
        ("ndarray:float32", ["nan"]),
        ("ndarray:int32", ["7"]),
    ],
)
def test_a_number_that_would_become_another_is_refused(tmp_path, encoding, value):
    """Infinity in place of a large number, nan of None, and a number of text."""
    with pytest.raises(RecordError, match=r"does not fit|is not an array of"):
        convert([{"x": value}], str(tmp_path / "out"), encodings={"x": encoding})


@pytest.mark.parametrize(("encoding", "value"), [("float32", "inf"), ("ndarray:float32", [np.inf])])
def test_infinity_is_a_number(tmp_path, encoding, value):
    """It stays what it is."""
    convert([{"x": value}], str(tmp_path / "out"), encodings={"x": encoding})
    assert np.isinf(LocalDataset(str(tmp_path / "out"))[0]["x"]).all()
