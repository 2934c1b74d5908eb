"use strict";
// The table of all utterances, a page at a time, so that ten thousand of them open at once; and the line in spectrograms.
{
  const ROWS = 50;
  const { columns, values, worst } = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const make = (tag, text = "") => Object.assign(document.createElement(tag), { textContent: text });
  const number = values[0].length;
  const anchors = new Map(worst.map((row, place) => [row, `#worst-${place}`]));
  const errors = columns.flatMap(({ name }, place) => (name.startsWith("Errors") ? [values[place]] : []));
  const words = columns.flatMap(({ kind }, place) => (kind === "number" ? [] : [values[place]]));
  let texts = null; // made at the first search
  let rows = [];
  let page = 0;
  let sorted = { column: -1, down: false };

  function compare(column, down) {
    const of = values[column];
    const isNumber = columns[column].kind === "number";
    const order = new Intl.Collator(undefined, { numeric: true });
    return (a, b) => {
      if (isNumber && (of[a] === null || of[b] === null)) return (of[a] === null) - (of[b] === null) || a - b;
      const way = isNumber ? of[a] - of[b] : order.compare(of[a], of[b]);
      return (down ? -way : way) || a - b;
    };
  }

  function choose() {
    const parts = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const onlyWrong = byId("wrong").checked;
    if (parts.length) texts ??= Array.from({ length: number }, (_, row) => words.map((of) => of[row]).join("\n").toLowerCase());
    rows = [];
    for (let row = 0; row < number; row++) {
      if (onlyWrong && !errors.some((of) => of[row])) continue;
      if (parts.every((part) => texts[row].includes(part))) rows.push(row);
    }
    if (sorted.column >= 0) rows.sort(compare(sorted.column, sorted.down));
    page = 0;
    show();
  }

  function cell(row, column) {
    const value = values[column][row];
    const { kind } = columns[column];
    const td = make(kind === "id" ? "th" : "td");
    td.className = kind;
    if (kind === "id") td.scope = "row";
    if (kind === "text") td.dir = "auto";
    if (kind === "id" && anchors.has(row)) td.append(Object.assign(make("a", value), { href: anchors.get(row) }));
    else td.textContent = value ?? "";
    return td;
  }

  function show() {
    const pages = Math.max(Math.ceil(rows.length / ROWS), 1);
    const body = make("tbody");
    for (const row of rows.slice(page * ROWS, (page + 1) * ROWS)) {
      const tr = make("tr");
      tr.append(...columns.map((_, column) => cell(row, column)));
      body.append(tr);
    }
    byId("utterances").tBodies[0].replaceWith(body);
    byId("count").textContent = `${rows.length.toLocaleString("en")} of ${number.toLocaleString("en")} utterances`;
    byId("place").textContent = `Page ${page + 1} of ${pages}`;
    byId("before").disabled = page === 0;
    byId("after").disabled = page + 1 >= pages;
  }

  const heads = columns.map(({ name, kind }, column) => {
    const th = Object.assign(make("th"), { scope: "col", className: kind });
    const button = Object.assign(make("button", name), { type: "button" });
    button.addEventListener("click", () => {
      const isAgain = sorted.column === column;
      sorted = { column, down: isAgain ? !sorted.down : kind === "number" };
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", sorted.down ? "descending" : "ascending");
      choose();
    });
    th.append(button);
    return th;
  });
  const head = make("tr");
  head.append(...heads);
  byId("utterances").tHead.append(head);
  byId("filter").addEventListener("input", choose);
  byId("wrong").addEventListener("change", choose);
  byId("filter").form.addEventListener("submit", (event) => event.preventDefault());
  byId("before").addEventListener("click", () => { page--; show(); });
  byId("after").addEventListener("click", () => { page++; show(); });
  choose();

  for (const audio of document.querySelectorAll("audio")) {
    const line = audio.closest(".recording").querySelector(".spectrogram");
    audio.addEventListener("timeupdate", () => {
      line.style.setProperty("--at", `${(100 * audio.currentTime) / (audio.duration || 1)}%`);
    });
  }
}
