from scripts.results_tables import PAGE, TABLES, written


def test_the_page_has_every_table_and_is_up_to_date():
    page = PAGE.read_text()
    assert all(f"<!-- table: {name} -->" in page for name in TABLES)
    assert written(page) == page, "run python scripts/results_tables.py"
