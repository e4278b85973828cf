"""Missing cells and keys: nothing, a value that was asked for, or an error that names both."""

import pytest
from quickly import convert, prepare

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
    with pytest.raises(RecordError, match="has no 'x'"):
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
