from scripts.results_tables import PAGES, TABLES, written


def test_the_pages_have_every_table_and_are_up_to_date():
    pages = [page.read_text() for page in PAGES]
    assert all(any(f"<!-- table: {name} -->" in page for page in pages) for name in TABLES)
    assert [written(page) for page in pages] == pages, "run python scripts/results_tables.py"
