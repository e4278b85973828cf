"""Sources of many megabytes."""

from mds.writers.convert import prepare


def test_large_csv_is_cut_between_records(kit):
    """Parts of one CSV file never begin inside quotes, wherever line breaks and quotes lie."""
    rows = [(i, 'say "hi"\n' * (i % 7) + "x" * (i % 50)) for i in range(40000)]
    text = "id,text\n" + "".join('{},"{}"\n'.format(i, t.replace('"', '""')) for i, t in rows)
    path = kit.write("x.csv", text)
    made = prepare(path, kit.out)
    assert len(list(made.source.cut_parts(1 << 18))) > 4
    made.run()
    assert [(s["id"], s["text"]) for s in kit.samples()] == rows
